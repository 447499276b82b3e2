#pragma once
#include <cstdint>

#include "tensor/cuda/launch.h"
#include "tensor/view.h"

/// How the rows of experts are cut into tiles, whose number is known when a kernel runs.
namespace llm::cuda {

/// Linear layers of experts (tensor/ops/grouped_linear.h).
struct GroupedLayer {
  std::int64_t n_experts;
  std::int64_t n_in;
  std::int64_t n_out;
};
inline GroupedLayer grouped_layer(const View& begins, std::int64_t n_in, std::int64_t n_out) {
  return {begins.n_elements() - 1, n_in, n_out};
}

/// Blocks for tiles of rows, however they fall to the experts, times those of columns; some blocks
/// find no rows.
inline std::int64_t n_grouped_tiles(const GroupedLayer& of, std::int64_t n_rows,
                                    std::int64_t n_columns, std::int64_t tile) {
  return (n_rows / tile + of.n_experts) * ((n_columns + tile - 1) / tile);
}

/// An expert's rows from `first` on, of which a block has a tile's; expert -1: the block has none.
struct RowTile {
  std::int64_t expert;
  std::int64_t first;
  std::int64_t end;
};

/// The tile with this number; each warp of a block finds it, its lanes some experts each.
__device__ inline RowTile row_tile(const std::int32_t* begins, std::int64_t n_experts,
                                   std::int64_t number, std::int32_t tile) {
  auto left = static_cast<std::int32_t>(number);  // tiles before it
  for (std::int64_t first = 0; first < n_experts; first += lanes) {
    const std::int64_t e = first + lane_of_warp();
    const std::int32_t n_rows = e < n_experts ? begins[e + 1] - begins[e] : 0;
    const std::int32_t n_tiles = (n_rows + tile - 1) / tile;
    std::int32_t sum = n_tiles;  // with those of the lanes before
    for (unsigned delta = 1; delta < lanes; delta *= 2) {
      const std::int32_t below = __shfl_up_sync(all_lanes, sum, delta);
      if (lane_of_warp() >= delta) sum += below;
    }
    const std::int32_t lane = warp_sum(sum <= left ? 1 : 0);
    if (lane < static_cast<std::int32_t>(lanes)) {
      const std::int32_t before = __shfl_sync(all_lanes, sum - n_tiles, lane);
      const std::int64_t expert = first + lane;
      return {expert, begins[expert] + static_cast<std::int64_t>(left - before) * tile,
              begins[expert + 1]};
    }
    left -= __shfl_sync(all_lanes, sum, lanes - 1);
  }
  return {-1, 0, 0};
}

}  // namespace llm::cuda
