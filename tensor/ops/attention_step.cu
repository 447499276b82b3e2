#include "tensor/ops/attention_step.h"

#include <cmath>

#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/rope.h"

namespace llm::cuda {
namespace {

__global__ void rope_kernel(AttentionShape shape, float theta, std::int64_t position, float* qkv) {
  const std::int64_t half = shape.head_dim / 2;
  const std::int64_t n = (shape.n_heads + shape.n_kv_heads) * half;
  for (std::int64_t p = first_element(); p < n; p += element_stride()) {
    turn_pair(qkv + p / half * shape.head_dim, p % half, half, theta, position, 1);
  }
}

/// Keys and values of a row stand side by side, after the queries.
__global__ void keep_kernel(AttentionShape shape, std::int64_t begin, std::int64_t capacity,
                            const float* qkv, float* keys, float* values) {
  const std::int64_t width = shape.n_kv_heads * shape.head_dim;
  for (std::int64_t i = first_element(); i < shape.seq_len * width; i += element_stride()) {
    const std::int64_t t = i / width;
    const std::int64_t head = i % width / shape.head_dim;
    const std::int64_t to = (head * capacity + begin + t) * shape.head_dim + i % shape.head_dim;
    const float* const row = qkv + t * shape.qkv_width() + shape.n_heads * shape.head_dim;
    keys[to] = row[i % width];
    values[to] = row[width + i % width];
  }
}

/// A softmax over some positions, and what it makes of their values.
struct Part {
  float largest;
  float sum;
};

/// A block has a head. Each of its warps goes through every eighth position in order, with sums
/// that are kept relative to the largest score so far; then those of the warps are added in order.
/// A lane has the elements of a head that are 32 apart.
__global__ void step_kernel(AttentionShape shape, std::int64_t capacity, std::int64_t n_kept,
                            float scale, const float* qkv, const float* keys, const float* values,
                            float* out) {
  auto* const parts = shared<Part>();
  auto* const mixed = reinterpret_cast<float*>(parts + block_warps);  // (warps, head_dim)
  const std::int64_t d = shape.head_dim;
  const std::int64_t head = blockIdx.x;
  const std::int64_t first_kept = head / (shape.n_heads / shape.n_kv_heads) * capacity * d;
  const std::int64_t warp = threadIdx.x / lanes;
  const float* const query = qkv + head * d;
  float* const own = mixed + warp * d;
  for (std::int64_t c = lane_of_warp(); c < d; c += lanes) own[c] = 0;
  Part part{-INFINITY, 0};
  for (std::int64_t u = warp; u < n_kept; u += block_warps) {
    const float* const key = keys + first_kept + u * d;
    const float* const value = values + first_kept + u * d;
    float dot = 0;
    for (std::int64_t c = lane_of_warp(); c < d; c += lanes) dot += query[c] * key[c];
    const float score = scale * warp_sum(dot);
    const float now_largest = fmaxf(part.largest, score);
    const float kept = expf(part.largest - now_largest);
    const float p = expf(score - now_largest);
    for (std::int64_t c = lane_of_warp(); c < d; c += lanes) own[c] = own[c] * kept + p * value[c];
    part = {now_largest, part.sum * kept + p};
  }
  if (lane_of_warp() == 0) parts[warp] = part;
  __syncthreads();
  float largest = parts[0].largest;
  for (unsigned w = 1; w < block_warps; ++w) largest = fmaxf(largest, parts[w].largest);
  for (std::int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    float sum = 0;
    float mix = 0;
    for (std::int64_t w = 0; w < block_warps; ++w) {
      const float weight = expf(parts[w].largest - largest);  // 0 of a warp without positions
      sum += weight * parts[w].sum;
      mix += weight * mixed[w * d + c];
    }
    out[head * d + c] = mix / sum;
  }
}

}  // namespace

void rope_step(cudaStream_t stream, AttentionShape shape, float theta, std::int64_t position,
               MutView qkv) {
  const std::int64_t n = (shape.n_heads + shape.n_kv_heads) * shape.head_dim / 2;
  launch(stream, grid_of(n), rope_kernel, shape, theta, position, qkv.as<float>());
}

void keep_keys_values(cudaStream_t stream, AttentionShape shape, View qkv, std::int64_t begin,
                      MutView keys, MutView values) {
  const std::int64_t n = shape.seq_len * shape.n_kv_heads * shape.head_dim;
  launch(stream, grid_of(n), keep_kernel, shape, begin, keys.shape()[1], qkv.as<float>(),
         keys.as<float>(), values.as<float>());
}

void attention_step(cudaStream_t stream, AttentionShape shape, View qkv, View keys, View values,
                    std::int64_t n_kept, MutView out) {
  const auto row_bytes = static_cast<unsigned>(shape.head_dim) * sizeof(float);
  const Grid grid{shape.n_heads, block_threads,
                  static_cast<unsigned>(block_warps * (sizeof(Part) + row_bytes))};
  const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  launch(stream, grid, step_kernel, shape, keys.shape()[1], n_kept, scale, qkv.as<float>(),
         keys.as<float>(), values.as<float>(), out.as<float>());
}

}  // namespace llm::cuda
