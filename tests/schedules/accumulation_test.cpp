#include "schedules/accumulation.h"

#include <bit>
#include <catch2/catch.hpp>
#include <vector>

#include "src/base/error.h"
#include "tests/support/values.h"

using namespace llm;

namespace {

/// Carries the steps out on one element: buffer contents are numbers.
float carry_out(const std::vector<AccumulationStep>& steps, int first_microbatch) {
  std::vector<float> buffers;
  int m = first_microbatch;
  for (const AccumulationStep& step : steps) {
    REQUIRE(step.buffer == static_cast<int>(buffers.size()));
    buffers.push_back(value_of(m++, 17));
    for (int n = 0; n < step.n_additions; ++n) {
      const float last = buffers.back();
      buffers.pop_back();
      REQUIRE(!buffers.empty());
      buffers.back() += last;
    }
  }
  REQUIRE(buffers.size() == 1);
  return buffers.front();
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

int ceil_log2(int n) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
}

}  // namespace

TEST_CASE("accumulation steps have the bits of the recursive sum for 1 to 300 microbatches") {
  for (int n = 1; n <= 300; ++n) {
    INFO(n << " microbatches");
    REQUIRE(same_bits(carry_out(accumulation_tree(n), 0), tree_sum(0, n, 17)));
  }
}

TEST_CASE("at most ceil(log2 A) + 1 gradient buffers are in use") {
  for (int n = 1; n <= 300; ++n) {
    INFO(n << " microbatches");
    const std::vector<AccumulationStep> steps = accumulation_tree(n);
    REQUIRE(steps.size() == static_cast<std::size_t>(n));
    REQUIRE(n_accumulation_buffers(steps) == ceil_log2(n) + 1);
  }
}

TEST_CASE("the tree differs from the sum in index order, or nothing above would show it") {
  float sequential = 0;
  for (int m = 0; m < 64; ++m) sequential += value_of(m, 17);
  CHECK_FALSE(same_bits(sequential, tree_sum(0, 64, 17)));
}

TEST_CASE("subtrees of D ranks joined by the tree over ranks are the global tree") {
  int n_grids = 0;
  for (int n_ranks = 1; n_ranks <= 16; n_ranks *= 2) {
    for (int per_rank = 1; per_rank <= 24; ++per_rank) {
      std::vector<float> sums;
      for (int rank = 0; rank < n_ranks; ++rank) {
        sums.push_back(carry_out(accumulation_tree(per_rank), rank * per_rank));
      }
      for (std::size_t width = 1; width < sums.size(); width *= 2) {
        for (std::size_t i = 0; i < sums.size(); i += 2 * width) sums[i] += sums[i + width];
      }
      INFO(n_ranks << " ranks of " << per_rank << " microbatches");
      REQUIRE(same_bits(sums.front(), tree_sum(0, n_ranks * per_rank, 17)));
      ++n_grids;
    }
  }
  CHECK(n_grids == 5 * 24);
}

TEST_CASE("a step without a microbatch is refused") {
  CHECK_THROWS_AS(accumulation_tree(0), ContractBroken);
}
