#pragma once
#include <cstdint>

#include "tensor/cuda/launch.h"

/// A stable sort by small keys without atomics. Items lie in segments that are cut into chunks; a
/// block has a chunk and a thread a key, for which it goes through the chunk in order.
namespace llm::cuda {

inline constexpr std::int64_t chunk_items = 1024;

/// How items are cut.
struct Chunks {
  Chunks(std::int64_t n_segments, std::int64_t n_items)
      : per_segment((n_items + chunk_items - 1) / chunk_items),
        n(n_segments * per_segment),
        segment_items(n_items) {}
  std::int64_t per_segment;
  std::int64_t n;
  std::int64_t segment_items;
  Grid grid() const { return {n, block_threads, chunk_items * sizeof(std::int32_t)}; }
};

/// A block's items: n of them from `first` on, whose keys are in shared memory.
struct Chunk {
  std::int64_t first;
  std::int64_t n;
  const std::int32_t* keys;
};

/// key_of(item) of the block's items.
template <typename KeyOf>
__device__ Chunk load_chunk(const Chunks& chunks, const KeyOf& key_of) {
  auto* const keys = shared<std::int32_t>();
  const std::int64_t before = blockIdx.x % chunks.per_segment * chunk_items;
  const std::int64_t n_left = chunks.segment_items - before;
  const std::int64_t first = blockIdx.x / chunks.per_segment * chunks.segment_items + before;
  const std::int64_t n = n_left < chunk_items ? n_left : chunk_items;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) keys[i] = key_of(first + i);
  __syncthreads();
  return {first, n, keys};
}

/// counts (keys, chunks): how many items of the block's chunk have each key.
__device__ inline void count_keys(const Chunk& chunk, std::int64_t n_keys, std::int64_t n_chunks,
                                  std::int32_t* counts) {
  for (std::int64_t key = threadIdx.x; key < n_keys; key += blockDim.x) {
    std::int32_t n = 0;
    for (std::int64_t i = 0; i < chunk.n; ++i) n += chunk.keys[i] == key ? 1 : 0;
    counts[key * n_chunks + blockIdx.x] = n;
  }
}

/// place(item, its place) of the chunk's items with `key`, which begin at `begin`.
template <typename Place>
__device__ void place_items(const Chunk& chunk, std::int64_t key, std::int32_t begin,
                            const Place& place) {
  for (std::int64_t i = 0; i < chunk.n; ++i) {
    if (chunk.keys[i] == key) place(chunk.first + i, begin++);
  }
}

/// A row of n numbers becomes the sums of those before each of them, and its sum that of all.
/// `sums` may follow the last row. A warp takes a row.
template <typename T>
__global__ void sums_before_kernel(std::int64_t n_rows, std::int64_t n, T* rows, T* sums) {
  const std::int64_t r = first_warp();
  if (r >= n_rows) return;
  T* const row = rows + r * n;
  T before = 0;
  for (std::int64_t first = 0; first < n; first += lanes) {
    const std::int64_t i = first + lane_of_warp();
    const T x = i < n ? row[i] : 0;
    T sum = x;
    for (unsigned delta = 1; delta < lanes; delta *= 2) {
      const T below = __shfl_up_sync(all_lanes, sum, delta);
      if (lane_of_warp() >= delta) sum += below;
    }
    if (i < n) row[i] = before + sum - x;
    before += __shfl_sync(all_lanes, sum, lanes - 1);
  }
  if (lane_of_warp() == 0) sums[r] = before;
}

inline void sums_before(cudaStream_t stream, std::int64_t n_rows, std::int64_t n,
                        std::int32_t* rows, std::int32_t* sums) {
  const Grid grid{(n_rows + block_warps - 1) / block_warps};
  launch(stream, grid, sums_before_kernel<std::int32_t>, n_rows, n, rows, sums);
}

}  // namespace llm::cuda
