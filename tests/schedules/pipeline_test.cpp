#include "schedules/pipeline.h"

#include <catch2/catch.hpp>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (int n_ranks = 1; n_ranks <= 8; ++n_ranks) {
    for (int n = 1; n <= 16; ++n) all.push_back({.n_ranks = n_ranks, .n_microbatches = n});
  }
  return all;
}

/// Every forward and backward once, each backward after its forward, both in microbatch order.
void check_complete(const Schedule& schedule, int n_microbatches) {
  int n_forward = 0;
  int n_backward = 0;
  for (const Action& action : schedule) {
    if (action.kind == Action::Kind::forward) {
      REQUIRE(action.microbatch == n_forward++);
    } else {
      REQUIRE(action.microbatch == n_backward++);
      REQUIRE(n_backward <= n_forward);
    }
  }
  REQUIRE(n_forward == n_microbatches);
  REQUIRE(n_backward == n_microbatches);
}

}  // namespace

TEST_CASE("schedules do every microbatch once, backwards in order and after their forwards") {
  for (const PipelineShape& shape : shapes()) {
    INFO(shape.n_ranks << " ranks, " << shape.n_microbatches << " microbatches");
    for (const Pipeline& pipeline : {gpipe(shape.n_ranks, shape.n_microbatches),
                                     one_f_one_b(shape.n_ranks, shape.n_microbatches)}) {
      REQUIRE(pipeline.schedules.size() == static_cast<std::size_t>(shape.n_ranks));
      for (const Schedule& schedule : pipeline.schedules) {
        check_complete(schedule, shape.n_microbatches);
      }
    }
  }
}

TEST_CASE("gpipe holds all microbatches, 1f1b at most as many as ranks follow") {
  for (const PipelineShape& shape : shapes()) {
    const Pipeline all = gpipe(shape.n_ranks, shape.n_microbatches);
    const Pipeline few = one_f_one_b(shape.n_ranks, shape.n_microbatches);
    for (int rank = 0; rank < shape.n_ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      REQUIRE(peak_activations(all.schedules[at]) == shape.n_microbatches);
      REQUIRE(peak_activations(few.schedules[at]) ==
              std::min(shape.n_ranks - rank, shape.n_microbatches));
    }
  }
}

TEST_CASE("the orders are the published ones") {
  CHECK(to_string(gpipe(2, 3).schedules[0]) == "F0 F1 F2 B0 B1 B2");
  CHECK(to_string(one_f_one_b(1, 3).schedules[0]) == "F0 B0 F1 B1 F2 B2");
  CHECK(to_string(one_f_one_b(2, 3).schedules[1]) == "F0 B0 F1 B1 F2 B2");
  CHECK(to_string(one_f_one_b(3, 4).schedules[0]) == "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK(to_string(one_f_one_b(4, 2).schedules[0]) == "F0 F1 B0 B1");
}

TEST_CASE("shapes that are no pipeline are refused") {
  CHECK_THROWS_AS(gpipe(0, 1), ContractBroken);
  CHECK_THROWS_AS(one_f_one_b(2, 0), ContractBroken);
}
