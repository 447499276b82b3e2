#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/adamw_kernels.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

template <typename T>
__global__ void adamw_kernel(AdamwFactors f, const float* grads, float* weights, float* m, float* v,
                             T* copy, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    const float g = f.grad_scale * grads[i];
    m[i] = f.keep_m * m[i] + f.take_m * g;
    v[i] = f.keep_v * v[i] + f.take_v * (g * g);
    float weight = weights[i];
    weight -= f.decay * weight;
    weight -= f.step_size * m[i] / (sqrtf(f.v_scale * v[i]) + f.epsilon);
    weights[i] = weight;
    if (copy != nullptr) copy[i] = round_to<T>(weight);
  }
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
    launch(stream, grid_of(n), adamw_kernel<T>, factors, grads.as<float>(), weights.as<float>(),
           m.as<float>(), v.as<float>(), static_cast<T*>(copy.data()), n);
  });
}

void sum_of_squares(cudaStream_t stream, View x, MutView chunk_sums) {
  const std::int64_t n_chunks = chunk_sums.n_elements();
  const Grid grid{(n_chunks + chunks_per_block - 1) / chunks_per_block};
  launch(stream, grid, sum_of_squares_kernel, x.as<float>(), x.n_elements(),
         chunk_sums.as<double>());
}

}  // namespace llm::cuda
