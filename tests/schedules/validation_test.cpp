#include "schedules/validation.h"

#include <catch2/catch.hpp>

using namespace llm;

TEST_CASE("each validation microbatch has one rank, also with more ranks than microbatches") {
  for (std::int64_t n_samples = 0; n_samples <= 30; ++n_samples) {
    for (std::int64_t microbatch = 1; microbatch <= 9; ++microbatch) {
      const ValidationPlan plan{1, 1, n_samples, microbatch};
      REQUIRE((plan.n_microbatches() - 1) * microbatch < std::max<std::int64_t>(1, n_samples));
      REQUIRE(plan.n_microbatches() * microbatch >= n_samples);
      for (int dp = 1; dp <= 8; ++dp) {
        std::int64_t next = 0;
        for (int rank = 0; rank < dp; ++rank) {
          const Range own = plan.microbatches(rank, dp);
          REQUIRE(own.begin == next);
          REQUIRE(own.size() <= (plan.n_microbatches() + dp - 1) / dp);
          next = own.end;
        }
        REQUIRE(next == plan.n_microbatches());
      }
    }
  }
}

TEST_CASE("validation is due after every interval and after the last step, once") {
  const ValidationPlan plan{.interval_steps = 4, .n_steps = 10, .n_samples = 1};
  std::vector<std::int64_t> due;
  for (std::int64_t step = 0; step < 10; ++step) {
    if (plan.due_after(step)) due.push_back(step);
  }
  CHECK(due == std::vector<std::int64_t>{3, 7, 9});
  CHECK(plan.n_rounds(0) == 3);
  CHECK(plan.n_rounds(4) == 2);
  CHECK(plan.n_rounds(10) == 0);
}

TEST_CASE("no interval or no samples: no validation") {
  CHECK_FALSE(ValidationPlan{.interval_steps = 0, .n_steps = 1, .n_samples = 5}.due_after(0));
  CHECK_FALSE(ValidationPlan{.interval_steps = 1, .n_steps = 1, .n_samples = 0}.due_after(0));
}
