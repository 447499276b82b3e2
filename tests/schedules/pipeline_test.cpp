#include "schedules/pipeline.h"

#include <catch2/catch.hpp>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (int n_stages = 1; n_stages <= 8; ++n_stages) {
    for (int stage = 0; stage < n_stages; ++stage) {
      for (int n = 1; n <= 16; ++n) all.push_back({stage, n_stages, n});
    }
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
    INFO("stage " << shape.stage << " of " << shape.n_stages << ", " << shape.n_microbatches);
    check_complete(gpipe(shape), shape.n_microbatches);
    check_complete(one_f_one_b(shape), shape.n_microbatches);
  }
}

TEST_CASE("gpipe holds all microbatches, 1f1b at most as many as stages follow") {
  for (const PipelineShape& shape : shapes()) {
    REQUIRE(peak_activations(gpipe(shape)) == shape.n_microbatches);
    REQUIRE(peak_activations(one_f_one_b(shape)) ==
            std::min(shape.n_stages - shape.stage, shape.n_microbatches));
  }
}

TEST_CASE("the orders are the published ones") {
  CHECK(to_string(gpipe({0, 2, 3})) == "F0 F1 F2 B0 B1 B2");
  CHECK(to_string(one_f_one_b({0, 1, 3})) == "F0 B0 F1 B1 F2 B2");
  CHECK(to_string(one_f_one_b({1, 2, 3})) == "F0 B0 F1 B1 F2 B2");
  CHECK(to_string(one_f_one_b({0, 3, 4})) == "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK(to_string(one_f_one_b({0, 4, 2})) == "F0 F1 B0 B1");
}

TEST_CASE("shapes that are no pipeline are refused") {
  CHECK_THROWS_AS(gpipe({0, 0, 1}), ContractBroken);
  CHECK_THROWS_AS(one_f_one_b({2, 2, 1}), ContractBroken);
  CHECK_THROWS_AS(one_f_one_b({0, 2, 0}), ContractBroken);
}
