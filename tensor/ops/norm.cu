#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

constexpr unsigned partial_bytes = block_threads / lanes * sizeof(float);

/// One of the two norms: a layer norm where `mean` is there.
struct Norm {
  std::int64_t n;
  std::int64_t width;
  float epsilon;
  bool centers;
};

template <typename T>
__global__ void forward_kernel(Norm norm, const T* x, const float* weight, const float* bias, T* y,
                               float* mean, float* rstd) {
  auto* const partials = shared<float>();
  const auto n = static_cast<float>(norm.width);
  for (std::int64_t r = blockIdx.x; r < norm.n; r += gridDim.x) {
    const T* const row = x + r * norm.width;
    float center = 0;
    if (norm.centers) {
      float sum = 0;
      for (std::int64_t c = threadIdx.x; c < norm.width; c += blockDim.x) sum += to_float(row[c]);
      center = block_sum(sum, partials) / n;
    }
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < norm.width; c += blockDim.x) {
      const float difference = to_float(row[c]) - center;
      squares += difference * difference;
    }
    const float scale = 1 / sqrtf(block_sum(squares, partials) / n + norm.epsilon);
    for (std::int64_t c = threadIdx.x; c < norm.width; c += blockDim.x) {
      const float h = (to_float(row[c]) - center) * scale;
      y[r * norm.width + c] = round_to<T>(h * weight[c] + (bias != nullptr ? bias[c] : 0));
    }
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
template <typename T>
__global__ void input_kernel(Norm norm, const T* x, const float* weight, const float* mean,
                             const float* rstd, const T* dy, bool adds, T* dx) {
  auto* const partials = shared<float>();
  const Statistics statistics{norm.centers ? mean : nullptr, rstd};
  const auto n = static_cast<float>(norm.width);
  for (std::int64_t r = blockIdx.x; r < norm.n; r += gridDim.x) {
    const std::int64_t begin = r * norm.width;
    float sum_g = 0;
    float sum_gh = 0;
    for (std::int64_t c = threadIdx.x; c < norm.width; c += blockDim.x) {
      const float g = to_float(dy[begin + c]) * weight[c];
      sum_g += g;
      sum_gh += g * statistics.normalized(to_float(x[begin + c]), r);
    }
    const float mean_g = norm.centers ? block_sum(sum_g, partials) / n : 0;
    const float mean_gh = block_sum(sum_gh, partials) / n;
    for (std::int64_t c = threadIdx.x; c < norm.width; c += blockDim.x) {
      const float h = statistics.normalized(to_float(x[begin + c]), r);
      const float g = to_float(dy[begin + c]) * weight[c];
      const float grad = rstd[r] * (g - mean_g - h * mean_gh);
      dx[begin + c] = round_to<T>(adds ? to_float(dx[begin + c]) + grad : grad);
    }
  }
}

/// A thread has a column, through all rows in order.
template <typename T>
__global__ void parameter_kernel(Norm norm, const T* x, const float* mean, const float* rstd,
                                 const T* dy, bool adds, float* dweight, float* dbias) {
  const Statistics statistics{norm.centers ? mean : nullptr, rstd};
  for (std::int64_t c = first_element(); c < norm.width; c += element_stride()) {
    float weight_sum = 0;
    float bias_sum = 0;
    for (std::int64_t r = 0; r < norm.n; ++r) {
      const float grad = to_float(dy[r * norm.width + c]);
      weight_sum += grad * statistics.normalized(to_float(x[r * norm.width + c]), r);
      bias_sum += grad;
    }
    dweight[c] = adds ? dweight[c] + weight_sum : weight_sum;
    if (dbias != nullptr) dbias[c] = adds ? dbias[c] + bias_sum : bias_sum;
  }
}

Grid rows_grid(std::int64_t n_rows) {
  constexpr std::int64_t most_blocks = 65'535;
  return {n_rows < most_blocks ? n_rows : most_blocks, block_threads, partial_bytes};
}

void forward(cudaStream_t stream, const Norm& norm, const View& x, const View& weight,
             const View& bias, const MutView& y, const MutView& mean, const MutView& rstd) {
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(norm.n), forward_kernel<T>, norm, x.as<T>(), weight.as<float>(),
           static_cast<const float*>(bias.data()), y.as<T>(), static_cast<float*>(mean.data()),
           rstd.as<float>());
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
  with_type_of(p.x.dtype(), [&](auto type) {
    using T = decltype(type);
    // The parameters' first: dx may be dy.
    launch(stream, grid_of(norm.width), parameter_kernel<T>, norm, p.x.as<T>(), mean,
           p.rstd.as<float>(), p.dy.as<T>(), p.write_dw == Write::add, p.dweight.as<float>(),
           static_cast<float*>(p.dbias.data()));
    launch(stream, rows_grid(norm.n), input_kernel<T>, norm, p.x.as<T>(), p.weight.as<float>(),
           mean, p.rstd.as<float>(), p.dy.as<T>(), p.write_dx == Write::add, p.dx.as<T>());
  });
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
