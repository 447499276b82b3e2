#include "tensor/ops/tiles.h"

#include <catch2/catch.hpp>

using namespace llm;

TEST_CASE("tiles cover every row once and none but the last is ever cut short") {
  for (const std::int64_t least_rows : {1, 16}) {
    for (std::int64_t n_rows = 0; n_rows < 300; ++n_rows) {
      const RowCut cut{n_rows, 64, least_rows};
      std::int64_t next = 0;
      for (std::int64_t tile = 0; tile < cut.n_tiles(); ++tile) {
        const Range rows = cut.rows(tile);
        REQUIRE(rows.begin == next);
        if (tile + 1 < cut.n_tiles()) REQUIRE(rows.size() == 64);
        if (n_rows >= 64) REQUIRE(rows.size() >= least_rows);
        REQUIRE(rows.size() > 0);
        next = rows.end;
      }
      REQUIRE(next == n_rows);
    }
  }
}

TEST_CASE("the rows of a tile follow from the cost of a row, not from their number") {
  CHECK(cut_by_flops(10'000, 2 * 384 * 1536).rows_per_tile == 64);
  CHECK(cut_by_flops(20, 2 * 384 * 1536).rows_per_tile == 64);
  CHECK(cut_by_flops(20, 1'000'000'000).rows_per_tile == 64);
  CHECK(cut_by_flops(20, 0).rows_per_tile == tile_flops / 64 * 64);
  CHECK(cut_by_bytes(5, tile_bytes * 2).rows_per_tile == 1);
  CHECK(cut_by_bytes(5, 1000).rows_per_tile == 2'000);
}

TEST_CASE("products of bf16 are cut into an even number of tiles of much the same size") {
  const std::int64_t weights[][2] = {{384, 1152}, {384, 384},  {384, 1536}, {1536, 384},
                                     {768, 2304}, {768, 3072}, {3072, 768}};
  for (const auto& [n_in, n_out] : weights) {
    for (const std::int64_t n_rows : {1024, 2048}) {
      INFO(n_rows << " rows, " << n_in << " to " << n_out);
      for (const int n_threads : {1, 2, 4}) {
        const RowCut rows = cut_by_bf16_flops(n_rows, 2 * n_in * n_out, n_threads);
        CHECK(n_rows % std::min<std::int64_t>(n_rows, rows.rows_per_tile) == 0);
        CHECK(rows.n_tiles() >= n_threads);
        CHECK(rows.rows_per_tile * 2 * n_in * n_out <= 2 * tile_flops_bf16);
      }
      const RowCut features = cut_weight_by_bf16_flops(n_out, 2 * n_in * n_rows);
      CHECK(features.n_tiles() % 2 == 0);
      CHECK(features.n_tiles() * features.rows_per_tile - n_out < features.rows_per_tile / 2);
    }
  }
  CHECK(cut_weight_by_bf16_flops(7, 100).n_tiles() == 1);
}
