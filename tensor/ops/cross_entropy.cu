#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// The largest of all threads' x, on each of them; `partials` as in block_sum.
__device__ float block_max(float x, float* partials) {
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, half));
  }
  if (threadIdx.x % lanes == 0) partials[threadIdx.x / lanes] = x;
  __syncthreads();
  float largest = partials[0];
  for (unsigned warp = 1; warp < blockDim.x / lanes; ++warp) {
    largest = fmaxf(largest, partials[warp]);
  }
  __syncthreads();
  return largest;
}

/// A block takes a row. dlogits may be logits, so that the label's logit is read before.
template <typename T>
__global__ void kernel(const std::int32_t* labels, float scale, std::int64_t n,
                       std::int64_t n_classes, const float* logits, T* dlogits, float* losses) {
  auto* const partials = shared<float>();
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const float* const row = logits + r * n_classes;
    const std::int32_t label = labels[r];
    const float at_label = label == ignored_label ? 0 : row[label];
    float largest = -INFINITY;
    for (std::int64_t v = threadIdx.x; v < n_classes; v += blockDim.x) {
      largest = fmaxf(largest, row[v]);
    }
    largest = block_max(largest, partials);
    float sum = 0;
    for (std::int64_t v = threadIdx.x; v < n_classes; v += blockDim.x) {
      sum += expf(row[v] - largest);
    }
    const float log_sum = largest + logf(block_sum(sum, partials));
    if (threadIdx.x == 0) losses[r] = label == ignored_label ? 0 : log_sum - at_label;
    if (dlogits == nullptr) continue;
    for (std::int64_t v = threadIdx.x; v < n_classes; v += blockDim.x) {
      const float p = scale * expf(row[v] - log_sum);
      const float grad = label == ignored_label ? 0 : p - (v == label ? scale : 0);
      dlogits[r * n_classes + v] = round_to<T>(grad);
    }
  }
}

}  // namespace

void cross_entropy(cudaStream_t stream, View labels, float scale, View logits, MutView dlogits,
                   MutView losses) {
  const std::int64_t n = logits.shape()[0];
  constexpr std::int64_t most_blocks = 65'535;
  const Grid grid{n < most_blocks ? n : most_blocks, block_threads,
                  block_threads / lanes * sizeof(float)};
  with_type_of(dlogits.empty() ? Dtype::f32 : dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid, kernel<T>, labels.as<std::int32_t>(), scale, n, logits.shape()[1],
           logits.as<float>(), static_cast<T*>(dlogits.data()), losses.as<float>());
  });
}

}  // namespace llm::cuda
