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
  CHECK(cut_by_bytes(5, 1000).rows_per_tile == 4'000);
}
