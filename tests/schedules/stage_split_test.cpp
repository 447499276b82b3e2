#include "schedules/stage_split.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "src/base/error.h"
#include "src/base/philox.h"

using namespace llm;

namespace {

LayerCosts even_costs(std::size_t n_blocks, double embedding = 0, double head = 0) {
  return {.embedding = embedding, .blocks = std::vector<double>(n_blocks, 1), .head = head};
}

std::vector<std::int64_t> block_counts(const std::vector<Range>& stages) {
  std::vector<std::int64_t> counts;
  for (const Range& stage : stages) counts.push_back(stage.size());
  --counts.front();
  --counts.back();
  return counts;
}

double dearest(const LayerCosts& costs, const std::vector<Range>& stages) {
  const std::vector<double> sums = stage_costs(costs, stages);
  return *std::max_element(sums.begin(), sums.end());
}

/// The least that the dearest stage can cost, by trying every split.
double least_by_trying(const LayerCosts& costs, std::vector<std::int64_t>& counts, int n_stages,
                       std::int64_t n_left) {
  if (static_cast<int>(counts.size()) == n_stages - 1) {
    counts.push_back(n_left);
    const double cost = dearest(costs, split_by_hand(counts));
    counts.pop_back();
    return cost;
  }
  double least = 1e300;
  const std::int64_t n_after = n_stages - 1 - static_cast<std::int64_t>(counts.size());
  for (std::int64_t n = 1; n <= n_left - n_after; ++n) {
    counts.push_back(n);
    least = std::min(least, least_by_trying(costs, counts, n_stages, n_left - n));
    counts.pop_back();
  }
  return least;
}

}  // namespace

TEST_CASE("any number of blocks lies on any number of stages, all of them and each once") {
  for (std::size_t n_blocks = 1; n_blocks <= 33; ++n_blocks) {
    for (int n_stages = 1; n_stages <= static_cast<int>(n_blocks); ++n_stages) {
      const std::vector<Range> stages = split_by_cost(even_costs(n_blocks, 0.5, 2), n_stages);
      REQUIRE(stages.size() == static_cast<std::size_t>(n_stages));
      std::int64_t begin = -1;
      for (const Range& stage : stages) {
        REQUIRE(stage.begin == begin);
        begin = stage.end;
      }
      REQUIRE(begin == static_cast<std::int64_t>(n_blocks) + 1);
      const std::vector<std::int64_t> counts = block_counts(stages);
      REQUIRE(*std::min_element(counts.begin(), counts.end()) >= 1);
    }
  }
}

TEST_CASE("30 blocks on 4 stages are 30 blocks, and differ by one at most") {
  CHECK(block_counts(split_by_cost(even_costs(30), 4)) == std::vector<std::int64_t>{7, 7, 8, 8});
  // A head that costs four blocks takes their place.
  CHECK(block_counts(split_by_cost(even_costs(28, 0, 4), 4)) ==
        std::vector<std::int64_t>{8, 8, 8, 4});
}

TEST_CASE("no split has a cheaper dearest stage") {
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    const auto drawn = [draw](std::uint64_t i) { return double(philox_at(draw, i)[0] % 1000); };
    LayerCosts costs{.embedding = drawn(0), .blocks = {}, .head = 3 * drawn(1)};
    for (std::uint64_t block = 0; block < 8; ++block) costs.blocks.push_back(drawn(2 + block));
    for (int n_stages = 1; n_stages <= 8; ++n_stages) {
      INFO("draw " << draw << ", stages " << n_stages);
      const std::vector<Range> stages = split_by_cost(costs, n_stages);
      std::vector<std::int64_t> counts;
      REQUIRE(dearest(costs, stages) == least_by_trying(costs, counts, n_stages, 8));
      REQUIRE(split_by_cost(costs, n_stages) == stages);
    }
  }
}

TEST_CASE("a split by hand has the embedding with its first stage and the head with its last") {
  CHECK(split_by_hand({3, 4, 1}) == std::vector<Range>{{-1, 3}, {3, 7}, {7, 9}});
  CHECK(split_by_hand({2}) == std::vector<Range>{{-1, 3}});
}

TEST_CASE("more stages than blocks are no split") {
  CHECK_THROWS_AS(split_by_cost(even_costs(3), 4), ContractBroken);
  CHECK_THROWS_AS(split_by_cost(even_costs(3), 0), ContractBroken);
  CHECK_THROWS_AS(split_by_hand({1, 0}), ContractBroken);
}
