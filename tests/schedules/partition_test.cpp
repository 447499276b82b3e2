#include "schedules/partition.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"

using namespace llm;

TEST_CASE("microbatches take the step's samples contiguously, each once, rank by rank") {
  for (const int dp : {1, 2, 3, 5}) {
    for (const int n_accumulation_steps : {1, 2, 4}) {
      for (const auto& samples : {std::vector<std::int64_t>{1}, {3, 3, 2}, {2, 1, 1}, {4, 4}}) {
        const Partition partition{samples, n_accumulation_steps, dp};
        std::int64_t next = 0;
        for (int index = 0; index < partition.n_global_microbatches(); ++index) {
          const Range range = partition.samples(index);
          REQUIRE(range.begin == next);
          REQUIRE(range.size() == samples[static_cast<std::size_t>(index) % samples.size()]);
          next = range.end;
        }
        REQUIRE(next == partition.global_batch());
        REQUIRE(partition.n_microbatches() * dp == partition.n_global_microbatches());
      }
    }
  }
}

TEST_CASE("a microbatch's index on its rank is accumulation step x microbatches a flush + m") {
  const Partition partition{{3, 3, 2}, 2, 2};
  // Rank 1, accumulation step 1, m = 2.
  const int index = 1 * partition.n_microbatches() + 1 * 3 + 2;
  CHECK(partition.samples(index) == Range{8 + 8 + 8 + 6, 32});
  CHECK_THROWS_AS(partition.samples(12), ContractBroken);
  CHECK_THROWS_AS(partition.samples(-1), ContractBroken);
}

TEST_CASE("8 samples in 3 parts are 3, 3 and 2") {
  CHECK(even_parts(8, 3) == std::vector<Range>{{0, 3}, {3, 6}, {6, 8}});
  CHECK(even_parts(2, 4) == std::vector<Range>{{0, 1}, {1, 2}, {2, 2}, {2, 2}});
}

TEST_CASE("even parts cover everything once, differ by one at most, and the larger come first") {
  for (std::int64_t n = 0; n <= 40; ++n) {
    for (int n_parts = 1; n_parts <= 17; ++n_parts) {
      const std::vector<Range> parts = even_parts(n, n_parts);
      REQUIRE(parts.size() == static_cast<std::size_t>(n_parts));
      std::int64_t next = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        REQUIRE(parts[i].begin == next);
        next = parts[i].end;
        if (i > 0) REQUIRE(parts[i].size() <= parts[i - 1].size());
      }
      REQUIRE(next == n);
      REQUIRE(parts.front().size() - parts.back().size() <= 1);
    }
  }
}

TEST_CASE("the loss scale is the least power of two that holds the largest microbatch's tokens") {
  CHECK(loss_scale_exponent({{1}, 1, 1}, 1) == 0);
  CHECK(loss_scale_exponent({{1}, 1, 1}, 2) == 1);
  CHECK(loss_scale_exponent({{1, 3}, 1, 1}, 8) == 5);   // 24 tokens
  CHECK(loss_scale_exponent({{4}, 1, 1}, 8) == 5);      // 32
  CHECK(loss_scale_exponent({{4, 1}, 1, 1}, 9) == 6);   // 36
  CHECK(loss_scale_exponent({{4, 1}, 8, 16}, 9) == 6);  // neither steps nor ranks count
}
