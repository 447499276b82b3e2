#include "tensor/cuda/column_sums.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// One of the two norms: a layer norm where `mean` is there.
struct Norm {
  std::int64_t n;
  std::int64_t width;
  float epsilon;
  bool centers;
};

/// run(column, how many columns are left) for the packs of a row that a thread has.
template <int n, typename Run>
__device__ void for_each_column(std::int64_t width, const Run& run) {
  for (std::int64_t c = threadIdx.x * n; c < width; c += blockDim.x * n) run(c, width - c);
}

// A block takes a row. What is not there of its last pack counts nothing in sums.

template <typename T, bool is_whole>
__global__ void forward_kernel(Norm norm, const T* x, const float* weight, const float* bias, T* y,
                               float* mean, float* rstd) {
  constexpr int n = pack_size<T>;
  auto* const partials = shared<float>();
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t r = blockIdx.x; r < norm.n; r += gridDim.x) {
    const T* const row = x + r * norm.width;
    float center = 0;
    if (norm.centers) {
      float sum = 0;
      for_each_column<n>(norm.width, [&](std::int64_t c, std::int64_t n_left) {
        const auto pack = load<n, is_whole>(row + c, n_left);
        for (int i = 0; i < n; ++i) sum += to_float(pack.at[i]);
      });
      center = block_sum(sum, partials) / width;
    }
    float squares = 0;
    for_each_column<n>(norm.width, [&](std::int64_t c, std::int64_t n_left) {
      const auto pack = load<n, is_whole>(row + c, n_left);
      for (int i = 0; i < n; ++i) {
        const float difference = i < n_left ? to_float(pack.at[i]) - center : 0;
        squares += difference * difference;
      }
    });
    const float scale = 1 / sqrtf(block_sum(squares, partials) / width + norm.epsilon);
    for_each_column<n>(norm.width, [&](std::int64_t c, std::int64_t n_left) {
      const auto pack = load<n, is_whole>(row + c, n_left);
      const auto w = load<n, is_whole>(weight + c, n_left);
      Pack<float, n> b{};
      if (bias != nullptr) b = load<n, is_whole>(bias + c, n_left);
      Pack<T, n> out;
      for (int i = 0; i < n; ++i) {
        out.at[i] = round_to<T>((to_float(pack.at[i]) - center) * scale * w.at[i] + b.at[i]);
      }
      store<is_whole>(out, y + r * norm.width + c, n_left);
    });
    if (threadIdx.x != 0) continue;
    if (norm.centers) mean[r] = center;
    rstd[r] = scale;
  }
}

struct Statistics {
  const float* mean;
  const float* rstd;
  __device__ float normalized(float x, std::int64_t r) const {
    return (mean != nullptr ? x - mean[r] : x) * rstd[r];
  }
};

/// dx = rstd (g - mean(g) - h mean(g h)) with g = dy weight; an RMS norm has no mean(g).
template <typename T, bool is_whole>
__global__ void input_kernel(Norm norm, const T* x, const float* weight, const float* mean,
                             const float* rstd, const T* dy, bool adds, T* dx) {
  constexpr int n = pack_size<T>;
  auto* const partials = shared<float>();
  const Statistics statistics{norm.centers ? mean : nullptr, rstd};
  const auto width = static_cast<float>(norm.width);
  for (std::int64_t r = blockIdx.x; r < norm.n; r += gridDim.x) {
    const std::int64_t begin = r * norm.width;
    float sum_g = 0;
    float sum_gh = 0;
    for_each_column<n>(norm.width, [&](std::int64_t c, std::int64_t n_left) {
      const auto of_x = load<n, is_whole>(x + begin + c, n_left);
      const auto of_dy = load<n, is_whole>(dy + begin + c, n_left);
      const auto w = load<n, is_whole>(weight + c, n_left);  // 0 beyond the row
      for (int i = 0; i < n; ++i) {
        const float g = to_float(of_dy.at[i]) * w.at[i];
        sum_g += g;
        sum_gh += g * statistics.normalized(to_float(of_x.at[i]), r);
      }
    });
    const float mean_g = norm.centers ? block_sum(sum_g, partials) / width : 0;
    const float mean_gh = block_sum(sum_gh, partials) / width;
    for_each_column<n>(norm.width, [&](std::int64_t c, std::int64_t n_left) {
      const auto of_x = load<n, is_whole>(x + begin + c, n_left);
      const auto of_dy = load<n, is_whole>(dy + begin + c, n_left);
      const auto w = load<n, is_whole>(weight + c, n_left);
      Pack<T, n> before{};
      if (adds) before = load<n, is_whole>(dx + begin + c, n_left);
      Pack<T, n> out;
      for (int i = 0; i < n; ++i) {
        const float h = statistics.normalized(to_float(of_x.at[i]), r);
        const float g = to_float(of_dy.at[i]) * w.at[i];
        const float grad = rstd[r] * (g - mean_g - h * mean_gh);
        out.at[i] = round_to<T>(adds ? to_float(before.at[i]) + grad : grad);
      }
      store<is_whole>(out, dx + begin + c, n_left);
    });
  }
}

/// Partial sums of the weight's gradient, and then of the bias's.
template <typename T, bool is_whole>
__global__ void parameter_kernel(Norm norm, Strips strips, const T* x, const float* mean,
                                 const float* rstd, const T* dy, float* partials) {
  constexpr int n = pack_size<T>;
  const Statistics statistics{norm.centers ? mean : nullptr, rstd};
  add_strip<2, n>(
      strips,
      [&](std::int64_t r, std::int64_t c, std::int64_t n_left, ColumnSums<2, n>& sums) {
        const auto of_x = load<n, is_whole>(x + r * norm.width + c, n_left);
        const auto of_dy = load<n, is_whole>(dy + r * norm.width + c, n_left);
        for (int i = 0; i < n; ++i) {
          const float grad = to_float(of_dy.at[i]);
          sums.at[0][i] += grad * statistics.normalized(to_float(of_x.at[i]), r);
          sums.at[1][i] += grad;
        }
      },
      partials);
}

void forward(cudaStream_t stream, const Norm& norm, const View& x, const View& weight,
             const View& bias, const MutView& y, const MutView& mean, const MutView& rstd) {
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<T>(norm.width, {x.data(), weight.data(), bias.data(), y.data()},
                     [&](auto is_whole) {
                       launch(stream, packed_rows_grid(norm.n, norm.width, pack_size<T>),
                              forward_kernel<T, is_whole()>, norm, x.as<T>(), weight.as<float>(),
                              static_cast<const float*>(bias.data()), y.as<T>(),
                              static_cast<float*>(mean.data()), rstd.as<float>());
                     });
  });
}

struct Backward {
  View x, weight, mean, rstd, dy;
  Write write_dx;
  MutView dx;
  Write write_dw;
  MutView dweight, dbias;
};

void backward(cudaStream_t stream, const Norm& norm, const Backward& p) {
  const auto* const mean = static_cast<const float*>(p.mean.data());
  const Strips strips(norm.n, norm.width);
  const Scratch scratch(2 * strips.sums_bytes(), stream);
  auto* const partials = scratch.as<float>();
  const bool adds = p.write_dw == Write::add;
  with_type_of(p.x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = pack_size<T>;
    with_packs_of<T>(
        norm.width, {p.x.data(), p.weight.data(), p.dy.data(), p.dx.data()}, [&](auto is_whole) {
          // The parameters' first: dx may be dy.
          launch(stream, strips.grid(n, 2), parameter_kernel<T, is_whole()>, norm, strips,
                 p.x.as<T>(), mean, p.rstd.as<float>(), p.dy.as<T>(), partials);
          launch(stream, packed_rows_grid(norm.n, norm.width, n), input_kernel<T, is_whole()>, norm,
                 p.x.as<T>(), p.weight.as<float>(), mean, p.rstd.as<float>(), p.dy.as<T>(),
                 p.write_dx == Write::add, p.dx.as<T>());
        });
  });
  add_strips(stream, strips, partials, adds, p.dweight.as<float>());
  if (p.dbias.empty()) return;
  const float* const bias_partials = partials + strips.n_strips * strips.width;
  add_strips(stream, strips, bias_partials, adds, p.dbias.as<float>());
}

Norm norm_of(const View& x, float epsilon, bool centers) {
  return {x.shape()[0], x.shape()[1], epsilon, centers};
}

}  // namespace

void layer_norm_forward(cudaStream_t stream, View x, View weight, View bias, float epsilon,
                        MutView y, MutView mean, MutView rstd) {
  forward(stream, norm_of(x, epsilon, true), x, weight, bias, y, mean, rstd);
}

void layer_norm_backward(cudaStream_t stream, View x, View weight, View mean, View rstd, View dy,
                         Write write_dx, MutView dx, Write write_dw, MutView dweight,
                         MutView dbias) {
  backward(stream, norm_of(x, 0, true),
           {x, weight, mean, rstd, dy, write_dx, dx, write_dw, dweight, dbias});
}

void rms_norm_forward(cudaStream_t stream, View x, View weight, float epsilon, MutView y,
                      MutView rstd) {
  forward(stream, norm_of(x, epsilon, false), x, weight, View(), y, MutView(), rstd);
}

void rms_norm_backward(cudaStream_t stream, View x, View weight, View rstd, View dy, Write write_dx,
                       MutView dx, Write write_dw, MutView dweight) {
  backward(stream, norm_of(x, 0, false),
           {x, weight, View(), rstd, dy, write_dx, dx, write_dw, dweight, MutView()});
}

}  // namespace llm::cuda
