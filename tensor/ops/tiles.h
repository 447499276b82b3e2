#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "src/base/range.h"

namespace llm {

/// How an op's rows are cut into tiles. Between two tiles the loop moves messages, and a rank's
/// threads share the tiles of an op, so a tile should take some 0.2 to 2 ms. The rows of a tile
/// follow from the cost of one row and not from the number of rows: a row sits among the same
/// neighbours whatever comes after it. (Products of bf16 do not care.)
struct RowCut {
  std::int64_t n_rows;
  std::int64_t rows_per_tile;
  /// A last tile of fewer rows joins the one before it.
  std::int64_t least_rows = 1;
  std::int64_t n_tiles() const {
    const std::int64_t n_whole = n_rows / rows_per_tile;
    const std::int64_t rest = n_rows % rows_per_tile;
    return n_whole + (n_whole == 0 ? rest > 0 : rest >= least_rows);
  }
  std::int64_t most_rows() const { return std::min(n_rows, rows_per_tile + least_rows - 1); }
  Range rows(std::int64_t tile) const {
    const std::int64_t begin = tile * rows_per_tile;
    return {begin, tile + 1 == n_tiles() ? n_rows : begin + rows_per_tile};
  }
};

/// Work of one tile: about 1 ms at 100 GFLOP/s.
inline constexpr std::int64_t tile_flops = 100'000'000;
/// The same of a product of bf16: 1.3 ms at 500 GFLOP/s. Twice that is the most for the sake of a
/// faster product.
inline constexpr std::int64_t tile_flops_bf16 = 640'000'000;
/// Traffic of one tile: about 0.1 ms at 20 GB/s.
inline constexpr std::int64_t tile_bytes = 2'000'000;

/// How oneDNN's products for AVX-512 cut a sum depends on the number of rows at two places: below
/// 16 rows, and at 100 where a row of b is a multiple of 4 KiB and a sum has more than 768 terms.
/// Tiles of such products have 64 to 79 rows, so within an op a row has the same bits in every tile
/// (tests/tensor/linear_test.cpp).
inline constexpr std::int64_t least_product_rows = 16;

/// Rows of a product. Multiples of 64 keep the library's inner kernels full.
inline RowCut cut_by_flops(std::int64_t n_rows, std::int64_t flops_per_row) {
  const std::int64_t rows = tile_flops / std::max<std::int64_t>(1, flops_per_row);
  return {n_rows, std::max<std::int64_t>(64, rows / 64 * 64), least_product_rows};
}

/// Rows of a product of bf16, whose bits do not depend on their number: 256 and more where that is
/// no tile too long and leaves none of `n_threads` idle. The library turns or packs all weights for
/// each tile, which costs 13 % of a tile of 128 rows. A power of two cuts the usual numbers of rows
/// into tiles of one size, evenly for threads.
inline RowCut cut_by_bf16_flops(std::int64_t n_rows, std::int64_t flops_per_row, int n_threads) {
  const std::int64_t cost = std::max<std::int64_t>(1, flops_per_row);
  const auto fitting =
      static_cast<std::uint64_t>(std::max<std::int64_t>(1, tile_flops_bf16 / cost));
  auto rows = static_cast<std::int64_t>(std::bit_floor(fitting));
  if (rows < 256) rows = 256 * cost <= 2 * tile_flops_bf16 ? 256 : 128;
  while (n_threads > 1 && rows > 128 && rows * n_threads > n_rows) rows /= 2;
  return {n_rows, rows, least_product_rows};
}

/// Features of a weight's gradient in bf16, in an even number of tiles: the library turns the
/// operands for each, so few wide tiles are faster, and it needs 96.
inline RowCut cut_weight_by_bf16_flops(std::int64_t n_features, std::int64_t flops_per_feature) {
  const std::int64_t features = tile_flops_bf16 / std::max<std::int64_t>(1, flops_per_feature);
  const std::int64_t widest = std::max<std::int64_t>(96, (features + 31) / 32 * 32);
  const std::int64_t n_tiles =
      std::max<std::int64_t>(2, (n_features + 2 * widest - 1) / (2 * widest) * 2);
  const std::int64_t width = (n_features + n_tiles - 1) / n_tiles;
  return {n_features, std::max<std::int64_t>(16, (width + 15) / 16 * 16), least_product_rows};
}

/// Rows of an op that memory bounds. `bytes_per_row` counts reads and writes.
inline RowCut cut_by_bytes(std::int64_t n_rows, std::int64_t bytes_per_row) {
  const std::int64_t bytes = std::max<std::int64_t>(1, bytes_per_row);
  return {n_rows, std::max<std::int64_t>(1, tile_bytes / bytes)};
}

}  // namespace llm
