#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
#include "tensor/ops/adamw_kernels.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

constexpr int adamw_pack = pack_size<float>;

template <typename T, bool is_whole>
__global__ void adamw_kernel(AdamwFactors f, const float* grads, float* weights, float* m, float* v,
                             T* copy, std::int64_t n_elements) {
  constexpr int n = adamw_pack;
  for_each_pack<n>(n_elements, [&](std::int64_t at, std::int64_t n_left) {
    const auto grad = load<n, is_whole>(grads + at, n_left);
    auto of_m = load<n, is_whole>(m + at, n_left);
    auto of_v = load<n, is_whole>(v + at, n_left);
    auto weight = load<n, is_whole>(weights + at, n_left);
    Pack<T, n> rounded;
    for (int i = 0; i < n; ++i) {
      const float g = f.grad_scale * grad.at[i];
      of_m.at[i] = f.keep_m * of_m.at[i] + f.take_m * g;
      of_v.at[i] = f.keep_v * of_v.at[i] + f.take_v * (g * g);
      weight.at[i] -= f.decay * weight.at[i];
      weight.at[i] -= f.step_size * of_m.at[i] / (sqrtf(f.v_scale * of_v.at[i]) + f.epsilon);
      rounded.at[i] = round_to<T>(weight.at[i]);
    }
    store<is_whole>(of_m, m + at, n_left);
    store<is_whole>(of_v, v + at, n_left);
    store<is_whole>(weight, weights + at, n_left);
    if (copy != nullptr) store<is_whole>(rounded, copy + at, n_left);
  });
}

constexpr unsigned chunk_lanes = 16;  // of the plain body, whose bits a norm has everywhere
constexpr unsigned chunks_per_block = block_threads / chunk_lanes;

__global__ void sum_of_squares_kernel(const float* x, std::int64_t n, double* chunk_sums) {
  const std::int64_t chunk =
      static_cast<std::int64_t>(blockIdx.x) * chunks_per_block + threadIdx.x / chunk_lanes;
  const std::int64_t begin = chunk * norm_chunk_elements;
  const std::int64_t end = begin + norm_chunk_elements < n ? begin + norm_chunk_elements : n;
  const unsigned lane = threadIdx.x % chunk_lanes;
  double sum = 0;
  for (std::int64_t i = begin + lane; i < end; i += chunk_lanes) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  for (unsigned half = chunk_lanes / 2; half > 0; half /= 2) {
    sum += __shfl_down_sync(all_lanes, sum, half);
  }
  if (lane == 0 && begin < n) chunk_sums[chunk] = sum;
}

}  // namespace

void adamw(cudaStream_t stream, const AdamwStep& step, View grads, MutView weights, MutView m,
           MutView v, MutView copy) {
  const AdamwFactors factors(step);
  const std::int64_t n = weights.n_elements();
  with_type_of(copy.empty() ? Dtype::f32 : copy.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<float>(n, {grads.data(), weights.data(), m.data(), v.data(), copy.data()},
                         [&](auto is_whole) {
                           launch(stream, packs_grid(n, adamw_pack), adamw_kernel<T, is_whole()>,
                                  factors, grads.as<float>(), weights.as<float>(), m.as<float>(),
                                  v.as<float>(), static_cast<T*>(copy.data()), n);
                         });
  });
}

void sum_of_squares(cudaStream_t stream, View x, MutView chunk_sums) {
  const std::int64_t n_chunks = chunk_sums.n_elements();
  const Grid grid{(n_chunks + chunks_per_block - 1) / chunks_per_block};
  launch(stream, grid, sum_of_squares_kernel, x.as<float>(), x.n_elements(),
         chunk_sums.as<double>());
}

}  // namespace llm::cuda
