#pragma once
#include <cstdint>

#include "tensor/cuda/launch.h"
#include "tensor/cuda/pack.h"

/// Sums over the rows of a matrix, column by column, in an order that follows from its shape: a
/// block adds a strip of rows, each of its warps every eighth and then the warps in order; then the
/// strips are added in order.
namespace llm::cuda {

struct Strips {
  Strips(std::int64_t n, std::int64_t n_columns) : n_rows(n), width(n_columns) {
    constexpr std::int64_t most_strips = 128;  // with tiles of columns enough for all processors
    constexpr std::int64_t least_rows = 8 * block_warps;
    const std::int64_t rows = (n + most_strips - 1) / most_strips;
    rows_per_strip = rows > least_rows ? rows : least_rows;
    n_strips = (n + rows_per_strip - 1) / rows_per_strip;
  }
  std::int64_t n_rows;
  std::int64_t width;
  std::int64_t rows_per_strip;
  std::int64_t n_strips;

  /// Bytes of partial sums of one row of sums.
  std::size_t sums_bytes() const {
    return static_cast<std::size_t>(n_strips * width) * sizeof(float);
  }
  /// A block has a strip of a tile of columns, with packs of n in n_sums sums.
  Grid grid(int n, int n_sums) const {
    const std::int64_t tile = n * lanes;
    return {n_strips * ((width + tile - 1) / tile), block_threads,
            static_cast<unsigned>(n_sums * n * block_threads * sizeof(float))};
  }
};

/// A thread's sums of n neighbouring columns.
template <int n_sums, int n>
struct ColumnSums {
  float at[n_sums][n];
};

/// Fills partials (n_sums, strips, width); add(row, column, how many columns are left, sums) adds a
/// row's terms of the n columns from `column` on.
template <int n_sums, int n, typename Add>
__device__ void add_strip(const Strips& strips, const Add& add, float* partials) {
  constexpr std::int64_t tile = n * lanes;
  const std::int64_t n_tiles = (strips.width + tile - 1) / tile;
  const std::int64_t strip = blockIdx.x / n_tiles;
  const std::int64_t first_column = blockIdx.x % n_tiles * tile;
  const std::int64_t column = first_column + lane_of_warp() * n;
  const std::int64_t first = strip * strips.rows_per_strip;
  const std::int64_t last = first + strips.rows_per_strip;
  const std::int64_t end = last < strips.n_rows ? last : strips.n_rows;
  ColumnSums<n_sums, n> sums{};
  for (std::int64_t r = first + threadIdx.x / lanes; r < end && column < strips.width;
       r += block_warps) {
    add(r, column, strips.width - column, sums);
  }
  auto* const of_warps = shared<float>();  // (n_sums, warps, tile)
  for (int s = 0; s < n_sums; ++s) {
    float* const own = of_warps + (s * block_warps + threadIdx.x / lanes) * tile;
    for (int i = 0; i < n; ++i) own[lane_of_warp() * n + i] = sums.at[s][i];
  }
  __syncthreads();
  for (std::int64_t c = threadIdx.x; c < n_sums * tile; c += blockDim.x) {
    const std::int64_t s = c / tile;
    const std::int64_t to = first_column + c % tile;
    if (to >= strips.width) continue;
    float sum = 0;
    for (unsigned warp = 0; warp < block_warps; ++warp) {
      sum += of_warps[(s * block_warps + warp) * tile + c % tile];
    }
    partials[(s * strips.n_strips + strip) * strips.width + to] = sum;
  }
}

/// sums[c] = (or +=) the partial sums (strips, width) of column c, in order.
template <typename Sum>
__global__ void add_strips_kernel(Strips strips, const float* partials, bool adds, Sum* sums) {
  for (std::int64_t c = first_element(); c < strips.width; c += element_stride()) {
    float sum = 0;
    for (std::int64_t s = 0; s < strips.n_strips; ++s) sum += partials[s * strips.width + c];
    sums[c] = adds ? sums[c] + sum : sum;
  }
}

inline void add_strips(cudaStream_t stream, const Strips& strips, const float* partials, bool adds,
                       float* sums) {
  launch(stream, grid_of(strips.width), add_strips_kernel<float>, strips, partials, adds, sums);
}

}  // namespace llm::cuda
