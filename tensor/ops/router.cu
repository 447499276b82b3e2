#include "tensor/ops/router.h"

#include <bit>
#include <cmath>

#include "tensor/cuda/counting_sort.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// RouterShape with its own experts.
struct Shape {
  explicit Shape(const RouterShape& shape)
      : n_tokens(shape.n_tokens),
        seq_len(shape.seq_len),
        n_experts(shape.n_experts),
        top_k(shape.top_k),
        own_begin(shape.own_experts().begin),
        own_end(shape.own_experts().end) {}
  std::int64_t n_tokens;
  std::int64_t seq_len;
  std::int64_t n_experts;
  std::int64_t top_k;
  std::int64_t own_begin;
  std::int64_t own_end;
};

__device__ bool is_among(std::int32_t expert, const std::int32_t* experts, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) {
    if (experts[j] == expert) return true;
  }
  return false;
}

/// Of two experts the one to choose has the larger key: by logits, of equal ones the lower expert.
__device__ std::uint64_t key_of(float logit, std::int64_t expert) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 equals 0
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | ~static_cast<std::uint32_t>(expert);
}

/// The expert of the largest logit of those that are not chosen yet, on all lanes. As a loop over
/// the experts has it: a NaN is larger than nothing, and stays where it comes first.
__device__ std::int32_t next_expert(const float* logits, std::int64_t n_experts,
                                    const std::int32_t* chosen, std::int64_t n_chosen) {
  std::int32_t first = 0;
  while (is_among(first, chosen, n_chosen)) ++first;
  if (std::isnan(logits[first])) return first;
  std::uint64_t best = 0;
  for (std::int64_t e = lane_of_warp(); e < n_experts; e += lanes) {
    if (std::isnan(logits[e]) || is_among(static_cast<std::int32_t>(e), chosen, n_chosen)) continue;
    const std::uint64_t key = key_of(logits[e], e);
    if (key > best) best = key;
  }
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    const std::uint64_t other = __shfl_xor_sync(all_lanes, best, half);
    if (other > best) best = other;
  }
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
}

/// A warp takes a token.
__global__ void choose_kernel(Shape shape, const float* logits, std::int32_t* experts,
                              float* weights) {
  for (std::int64_t t = first_warp(); t < shape.n_tokens; t += warp_stride()) {
    const float* const row = logits + t * shape.n_experts;
    std::int32_t* const chosen = experts + t * shape.top_k;
    float* const weight = weights + t * shape.top_k;
    for (std::int64_t j = 0; j < shape.top_k; ++j) {
      const std::int32_t expert = next_expert(row, shape.n_experts, chosen, j);
      if (lane_of_warp() == 0) chosen[j] = expert;
      __syncwarp();
    }
    const float largest = row[chosen[0]];
    for (std::int64_t j = lane_of_warp(); j < shape.top_k; j += lanes) {
      weight[j] = expf(row[chosen[j]] - largest);
    }
    __syncwarp();
    float sum = 0;
    for (std::int64_t j = 0; j < shape.top_k; ++j) sum += weight[j];
    __syncwarp();
    for (std::int64_t j = lane_of_warp(); j < shape.top_k; j += lanes) weight[j] /= sum;
  }
}

// Visits are sorted by expert: a sequence's are a segment of the sort.

__global__ void count_kernel(Shape shape, Chunks chunks, const std::int32_t* experts,
                             std::int32_t* chunk_counts) {
  const Chunk chunk = load_chunk(chunks, [&](std::int64_t visit) { return experts[visit]; });
  count_keys(chunk, shape.n_experts, chunks.n, chunk_counts);
}

__global__ void sequence_counts_kernel(Shape shape, Chunks chunks, const std::int32_t* chunk_counts,
                                       std::int32_t* counts) {
  const std::int64_t n = shape.n_tokens / shape.seq_len * shape.n_experts;
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    const std::int64_t first = i / shape.n_experts * chunks.per_segment;
    const std::int32_t* const of_expert = chunk_counts + i % shape.n_experts * chunks.n + first;
    std::int32_t sum = 0;
    for (std::int64_t c = 0; c < chunks.per_segment; ++c) sum += of_expert[c];
    counts[i] = sum;
  }
}

__global__ void rows_kernel(Shape shape, Chunks chunks, const std::int32_t* experts,
                            const std::int32_t* chunk_begins, const std::int32_t* begins,
                            std::int32_t* rows, std::int32_t* visits) {
  const Chunk chunk = load_chunk(chunks, [&](std::int64_t visit) { return experts[visit]; });
  for (std::int64_t i = threadIdx.x; i < chunk.n; i += blockDim.x) {
    const bool is_own = shape.own_begin <= chunk.keys[i] && chunk.keys[i] < shape.own_end;
    if (!is_own) rows[chunk.first + i] = -1;
  }
  for (std::int64_t e = shape.own_begin + threadIdx.x; e < shape.own_end; e += blockDim.x) {
    const std::int32_t begin =
        begins[e - shape.own_begin] + chunk_begins[e * chunks.n + blockIdx.x];
    place_items(chunk, e, begin, [&](std::int64_t visit, std::int32_t row) {
      rows[visit] = row;
      visits[row] = static_cast<std::int32_t>(visit);
    });
  }
}

void plan_rows(cudaStream_t stream, const Shape& shape, const Routing& routing) {
  const std::int64_t n_sequences = shape.n_tokens / shape.seq_len;
  const Chunks chunks(n_sequences, shape.seq_len * shape.top_k);
  const auto n_counts = static_cast<std::size_t>(shape.n_experts * chunks.n);
  const auto n_experts = static_cast<std::size_t>(shape.n_experts);
  const Scratch scratch((n_counts + n_experts) * sizeof(std::int32_t), stream);
  auto* const chunk_counts = scratch.as<std::int32_t>();
  std::int32_t* const totals = chunk_counts + n_counts;
  const auto* const experts = routing.experts.as<std::int32_t>();
  auto* const begins = routing.begins.as<std::int32_t>();
  const std::int64_t n_own = shape.own_end - shape.own_begin;
  launch(stream, chunks.grid(), count_kernel, shape, chunks, experts, chunk_counts);
  launch(stream, grid_of(n_sequences * shape.n_experts), sequence_counts_kernel, shape, chunks,
         chunk_counts, routing.counts.as<std::int32_t>());
  sums_before(stream, shape.n_experts, chunks.n, chunk_counts, totals);
  const auto own_bytes = static_cast<std::size_t>(n_own) * sizeof(std::int32_t);
  check(cudaMemcpyAsync(begins, totals + shape.own_begin, own_bytes, cudaMemcpyDeviceToDevice,
                        stream),
        "a copy of counts");
  sums_before(stream, 1, n_own, begins, begins + n_own);
  launch(stream, chunks.grid(), rows_kernel, shape, chunks, experts, chunk_counts, begins,
         routing.rows.as<std::int32_t>(), routing.visits.as<std::int32_t>());
}

struct Losses {
  RouterWeights weights;
  float scale;
};

constexpr std::int64_t block_tokens = 64;

/// What a visit of the sequence's adds to its balance for each unit of probability of one token.
__device__ float per_count(const Shape& shape, const std::int32_t* labels, std::int32_t* partials) {
  std::int32_t n = 0;
  for (std::int64_t t = threadIdx.x; t < shape.seq_len; t += blockDim.x) {
    n += labels[t] != ignored_label ? 1 : 0;
  }
  const std::int64_t n_valid = block_sum(n, partials);
  return static_cast<float>(static_cast<double>(n_valid * shape.n_experts) /
                            static_cast<double>(shape.seq_len * shape.seq_len * shape.top_k));
}

/// Of a softmax over the chosen: w (dw - sum of w dw), where e is among them.
__device__ float choice_grad(std::int64_t e, std::int64_t top_k, const std::int32_t* chosen,
                             const float* w, const float* dw) {
  float sum = 0;
  for (std::int64_t j = 0; j < top_k; ++j) sum += w[j] * dw[j];
  for (std::int64_t j = 0; j < top_k; ++j) {
    if (chosen[j] == e) return w[j] * (dw[j] - sum);
  }
  return 0;
}

/// A softmax over all experts.
struct Softmax {
  float largest;
  float sum;
  __device__ float at(float logit) const { return expf(logit - largest) / sum; }
};
__device__ Softmax softmax_of(const float* logits, std::int64_t n) {
  float largest = -INFINITY;
  for (std::int64_t e = lane_of_warp(); e < n; e += lanes) largest = fmaxf(largest, logits[e]);
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, half));
  }
  float sum = 0;
  for (std::int64_t e = lane_of_warp(); e < n; e += lanes) sum += expf(logits[e] - largest);
  return {largest, warp_sum(sum)};
}

/// A block has some tokens of one sequence, a warp one of them at a time.
template <typename T>
__global__ void backward_kernel(Shape shape, Losses of, const float* logits,
                                const std::int32_t* experts, const float* weights,
                                const std::int32_t* counts, const float* dweights,
                                const std::int32_t* labels, T* dlogits, float* token_losses) {
  const std::int64_t n_tiles = (shape.seq_len + block_tokens - 1) / block_tokens;
  const std::int64_t sequence = blockIdx.x / n_tiles;
  const std::int64_t first = sequence * shape.seq_len;
  const float count_factor = per_count(shape, labels + first, shared<std::int32_t>());
  const float balance = of.scale * of.weights.balance * count_factor;
  const std::int32_t* const count = counts + sequence * shape.n_experts;
  const std::int64_t begin = blockIdx.x % n_tiles * block_tokens;
  const std::int64_t end =
      begin + block_tokens < shape.seq_len ? begin + block_tokens : shape.seq_len;
  for (std::int64_t place = begin + threadIdx.x / lanes; place < end; place += block_warps) {
    const std::int64_t t = first + place;
    const float* const row = logits + t * shape.n_experts;
    const Softmax softmax = softmax_of(row, shape.n_experts);
    float mean_count = 0;
    for (std::int64_t e = lane_of_warp(); e < shape.n_experts; e += lanes) {
      mean_count += softmax.at(row[e]) * static_cast<float>(count[e]);
    }
    mean_count = warp_sum(mean_count);
    const bool is_valid = labels[t] != ignored_label;
    const float log_sum = is_valid ? softmax.largest + logf(softmax.sum) : 0;
    if (lane_of_warp() == 0) {
      token_losses[2 * t] = count_factor * mean_count;
      token_losses[2 * t + 1] = log_sum * log_sum;
    }
    const float z = of.scale * of.weights.z * 2 * log_sum;
    const std::int64_t visit = t * shape.top_k;
    for (std::int64_t e = lane_of_warp(); e < shape.n_experts; e += lanes) {
      const float choice =
          choice_grad(e, shape.top_k, experts + visit, weights + visit, dweights + visit);
      const float difference = static_cast<float>(count[e]) - mean_count;
      const float grad = choice + softmax.at(row[e]) * (balance * difference + z);
      dlogits[t * shape.n_experts + e] = round_to<T>(grad);
    }
  }
}

}  // namespace

void route(cudaStream_t stream, const RouterShape& router, const Routing& routing) {
  const Shape shape(router);
  launch(stream, warps_grid(shape.n_tokens), choose_kernel, shape, routing.logits.as<float>(),
         routing.experts.as<std::int32_t>(), routing.weights.as<float>());
  plan_rows(stream, shape, routing);
}

void router_backward(cudaStream_t stream, const RouterShape& router, const Routing& routing,
                     View dweights, View labels, const RouterWeights& weights, float scale,
                     MutView dlogits, MutView token_losses) {
  const Shape shape(router);
  const std::int64_t n_tiles = (shape.seq_len + block_tokens - 1) / block_tokens;
  const Grid grid{router.n_sequences() * n_tiles, block_threads, partials_bytes<std::int32_t>};
  with_type_of(dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid, backward_kernel<T>, shape, Losses{weights, scale},
           routing.logits.as<float>(), routing.experts.as<std::int32_t>(),
           routing.weights.as<float>(), routing.counts.as<std::int32_t>(), dweights.as<float>(),
           labels.as<std::int32_t>(), dlogits.as<T>(), token_losses.as<float>());
  });
}

}  // namespace llm::cuda
