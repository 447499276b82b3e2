#include "schedules/grid.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"

using namespace llm;

TEST_CASE("ranks are row-major over [dp][pp][tp]: tp is contiguous, dp strided by pp * tp") {
  const Grid grid{.dp = 2, .pp = 2, .tp = 4};
  REQUIRE(grid.n_ranks() == 16);
  CHECK(place_of(grid, 0) == GridPlace{0, 0, 0});
  CHECK(place_of(grid, 1) == GridPlace{0, 0, 1});
  CHECK(place_of(grid, 4) == GridPlace{0, 1, 0});
  CHECK(place_of(grid, 8) == GridPlace{1, 0, 0});
  CHECK(place_of(grid, 15) == GridPlace{1, 1, 3});
  CHECK(data_parallel_group(grid, 6) == std::vector<int>{6, 14});
  CHECK(data_parallel_group({.dp = 4, .pp = 1, .tp = 1}, 2) == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("a rank and its place belong to each other on every grid") {
  for (int dp = 1; dp <= 4; ++dp) {
    for (int pp = 1; pp <= 4; ++pp) {
      for (int tp = 1; tp <= 4; ++tp) {
        const Grid grid{dp, pp, tp};
        for (int rank = 0; rank < grid.n_ranks(); ++rank) {
          const GridPlace place = place_of(grid, rank);
          REQUIRE(rank_at(grid, place) == rank);
          const std::vector<int> group = data_parallel_group(grid, rank);
          REQUIRE(group.size() == static_cast<std::size_t>(dp));
          REQUIRE(group[static_cast<std::size_t>(place.dp)] == rank);
          for (const int member : group) {
            REQUIRE(place_of(grid, member).pp == place.pp);
            REQUIRE(place_of(grid, member).tp == place.tp);
          }
          const std::vector<int> pipeline = pipeline_group(grid, rank);
          REQUIRE(pipeline.size() == static_cast<std::size_t>(pp));
          REQUIRE(pipeline[static_cast<std::size_t>(place.pp)] == rank);
          for (const int member : pipeline) {
            REQUIRE(place_of(grid, member).dp == place.dp);
            REQUIRE(place_of(grid, member).tp == place.tp);
          }
        }
      }
    }
  }
}

TEST_CASE("a rank outside the grid is refused") {
  CHECK_THROWS_AS(place_of({.dp = 2, .pp = 1, .tp = 1}, 2), ContractBroken);
  CHECK_THROWS_AS(place_of({.dp = 2, .pp = 1, .tp = 1}, -1), ContractBroken);
}
