#include "schedules/stage_split.h"

#include <algorithm>
#include <limits>

#include "src/base/check.h"

namespace llm {
namespace {

constexpr double unreachable = std::numeric_limits<double>::infinity();

/// What the blocks [begin, end) cost as stage `stage`.
class StageCost {
 public:
  StageCost(const LayerCosts& costs, int n_stages) : costs_(costs), n_stages_(n_stages) {
    before_.push_back(0);
    for (const double cost : costs.blocks) before_.push_back(before_.back() + cost);
  }
  double of(int stage, std::size_t begin, std::size_t end) const {
    return before_[end] - before_[begin] + (stage == 0 ? costs_.embedding : 0) +
           (stage == n_stages_ - 1 ? costs_.head : 0);
  }

 private:
  const LayerCosts& costs_;
  int n_stages_;
  std::vector<double> before_;  // cost of the blocks before each
};

/// Where the stages end, and what that costs together, for every number of blocks that the stages
/// so far may take: `join` puts a stage's cost to that of the stages before it.
template <typename Join>
std::vector<std::size_t> best_ends(const StageCost& cost, int n_stages, std::size_t n_blocks,
                                   Join join) {
  const auto n = static_cast<std::size_t>(n_stages);
  std::vector<std::vector<std::size_t>> begin_of(n, std::vector<std::size_t>(n_blocks + 1, 0));
  std::vector<double> best(n_blocks + 1, unreachable);
  best[0] = 0;
  for (int stage = 0; stage < n_stages; ++stage) {
    std::vector<double> next(n_blocks + 1, unreachable);
    for (std::size_t end = static_cast<std::size_t>(stage) + 1; end <= n_blocks; ++end) {
      for (std::size_t begin = static_cast<std::size_t>(stage); begin < end; ++begin) {
        const double together = join(best[begin], cost.of(stage, begin, end));
        if (together >= next[end]) continue;
        next[end] = together;
        begin_of[static_cast<std::size_t>(stage)][end] = begin;
      }
    }
    best = std::move(next);
  }
  std::vector<std::size_t> ends(n);
  std::size_t end = n_blocks;
  for (std::size_t stage = n; stage-- > 0;) {
    ends[stage] = end;
    end = begin_of[stage][end];
  }
  return ends;
}

}  // namespace

std::vector<Range> split_by_cost(const LayerCosts& costs, int n_stages) {
  const std::size_t n_blocks = costs.blocks.size();
  CHECK_CONTRACT(n_stages >= 1 && static_cast<std::size_t>(n_stages) <= n_blocks,
                 "every stage has a block");
  const StageCost cost(costs, n_stages);
  const auto dearest = [](double so_far, double stage) { return std::max(so_far, stage); };
  double limit = 0;
  std::size_t begin = 0;
  const std::vector<std::size_t> ends = best_ends(cost, n_stages, n_blocks, dearest);
  for (int stage = 0; stage < n_stages; ++stage) {
    const std::size_t end = ends[static_cast<std::size_t>(stage)];
    limit = std::max(limit, cost.of(stage, begin, end));
    begin = end;
  }
  const auto squares = [limit](double so_far, double stage) {
    return stage <= limit ? so_far + stage * stage : unreachable;
  };
  std::vector<std::int64_t> counts;
  std::size_t before = 0;
  for (const std::size_t end : best_ends(cost, n_stages, n_blocks, squares)) {
    counts.push_back(static_cast<std::int64_t>(end - before));
    before = end;
  }
  return split_by_hand(counts);
}

std::vector<Range> split_by_hand(const std::vector<std::int64_t>& n_blocks) {
  CHECK_CONTRACT(!n_blocks.empty(), "a model has a stage");
  std::vector<Range> stages;
  std::int64_t begin = -1;
  std::int64_t n_before = 0;
  for (const std::int64_t n : n_blocks) {
    CHECK_CONTRACT(n >= 1, "every stage has a block");
    n_before += n;
    stages.push_back({begin, n_before});
    begin = n_before;
  }
  ++stages.back().end;
  return stages;
}

std::vector<double> stage_costs(const LayerCosts& costs, const std::vector<Range>& stage_layers) {
  const auto n_blocks = static_cast<std::int64_t>(costs.blocks.size());
  std::vector<double> sums;
  for (const Range& layers : stage_layers) {
    double sum = 0;
    for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
      sum += layer < 0           ? costs.embedding
             : layer == n_blocks ? costs.head
                                 : costs.blocks[static_cast<std::size_t>(layer)];
    }
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace llm
