#pragma once
#include <string>
#include <vector>

namespace llm {

/// Sizes of the rank grid, row-major [dp][pp][tp]: tp groups are contiguous ranks, data-parallel
/// groups are strided by pp * tp.
struct Grid {
  int dp = 1;
  int pp = 1;
  int tp = 1;
  int n_ranks() const { return dp * pp * tp; }
  bool operator==(const Grid&) const = default;
};

struct GridPlace {
  int dp = 0;
  int pp = 0;
  int tp = 0;
  bool operator==(const GridPlace&) const = default;
};

GridPlace place_of(const Grid& grid, int rank);
int rank_at(const Grid& grid, GridPlace place);
/// The ranks that hold the same part of the model as `rank`, in order of their dp index.
std::vector<int> data_parallel_group(const Grid& grid, int rank);
/// The ranks that share each layer of this rank's stage, in order of their tp index.
std::vector<int> tensor_group(const Grid& grid, int rank);
/// The ranks that hold the other stages of this rank's pipeline, in order of their pp index.
std::vector<int> pipeline_group(const Grid& grid, int rank);

}  // namespace llm
