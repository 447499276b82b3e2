#include "schedules/grid.h"

#include "src/base/check.h"

namespace llm {

GridPlace place_of(const Grid& grid, int rank) {
  CHECK_CONTRACT(0 <= rank && rank < grid.n_ranks(), "a rank has a place in the grid");
  return {rank / (grid.pp * grid.tp), rank / grid.tp % grid.pp, rank % grid.tp};
}

int rank_at(const Grid& grid, GridPlace place) {
  return (place.dp * grid.pp + place.pp) * grid.tp + place.tp;
}

std::vector<int> pipeline_group(const Grid& grid, int rank) {
  GridPlace place = place_of(grid, rank);
  std::vector<int> ranks;
  for (place.pp = 0; place.pp < grid.pp; ++place.pp) ranks.push_back(rank_at(grid, place));
  return ranks;
}

std::vector<int> tensor_group(const Grid& grid, int rank) {
  GridPlace place = place_of(grid, rank);
  std::vector<int> ranks;
  for (place.tp = 0; place.tp < grid.tp; ++place.tp) ranks.push_back(rank_at(grid, place));
  return ranks;
}

std::vector<int> data_parallel_group(const Grid& grid, int rank) {
  GridPlace place = place_of(grid, rank);
  std::vector<int> ranks;
  for (place.dp = 0; place.dp < grid.dp; ++place.dp) ranks.push_back(rank_at(grid, place));
  return ranks;
}

}  // namespace llm
