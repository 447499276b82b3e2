#include "actors/metrics.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "tests/actors/rig.h"

using namespace llm;

namespace {

struct Board {
  explicit Board(Metrics::Plan plan)
      : metrics(rig.loop, std::move(plan), {step_done.port(), validation_done.port()}) {
    rig.loop.spawn("metrics", metrics.run());
  }
  Rig rig;
  Sent<StepMetrics> step_done;
  Sent<ValidationMetrics> validation_done;
  Metrics metrics;
};

StepReport report_of(std::int64_t n_valid) {
  StepReport report;
  report.n_valid = n_valid;
  return report;
}

}  // namespace

TEST_CASE("6 tokens at loss 2.0 and 2 at 4.0 are a loss of 2.5, not 3.0") {
  Board board({.n_global_microbatches = 2, .validation = {}, .first_step = 0, .n_steps = 1});
  board.metrics.loss().put(1, {2 * 4.0, 2});
  board.metrics.loss().put(0, {6 * 2.0, 6});
  board.metrics.step_report().put(0, report_of(8));
  REQUIRE(board.rig.loop.run_until_idle());
  CHECK(board.step_done.messages.at(0).loss == 2.5);
}

TEST_CASE("the router's losses of all ranks become a mean over valid tokens and blocks") {
  Board board({.n_global_microbatches = 1,
               .n_router_ranks = 2,
               .n_routers = 4,
               .validation = {},
               .first_step = 0,
               .n_steps = 1});
  board.metrics.loss().put(0, {12, 6});
  board.metrics.router_losses().put(1, {20, 5});
  board.metrics.router_losses().put(0, {4, 7});
  board.metrics.step_report().put(0, report_of(6));
  REQUIRE(board.rig.loop.run_until_idle());
  CHECK(board.step_done.messages.at(0).router.balance == 1.0);
  CHECK(board.step_done.messages.at(0).router.z == 0.5);
}

TEST_CASE("losses have the same bits in whatever order they arrive") {
  const int n = 16;
  std::vector<std::pair<std::int64_t, LossReport>> losses;
  double expected = 0;
  for (int g = 0; g < n; ++g) {
    losses.emplace_back(g, LossReport{1.0 / (3 + 7 * g) * (g % 5 == 0 ? 1e6 : 1), 1});
    expected += losses.back().second.sum;
  }
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Board board({.n_global_microbatches = n, .validation = {}, .first_step = 0, .n_steps = 1});
    board.metrics.step_report().put(0, report_of(n));
    board.rig.loop.spawn(
        "losses", deliver(board.rig.loop, board.metrics.loss(), shuffled(losses, seed), seed));
    board.rig.loop.run();
    REQUIRE(board.step_done.messages.at(0).loss == expected / n);
  }
}

TEST_CASE("validation losses 1 to 21 in microbatches of 8, 8 and 5 are 11.0") {
  const ValidationPlan validation{
      .interval_steps = 1, .n_steps = 1, .n_samples = 21, .microbatch_samples = 8};
  Board board(
      {.n_global_microbatches = 1, .validation = validation, .first_step = 0, .n_steps = 1});
  board.metrics.loss().put(0, {1, 1});
  board.metrics.step_report().put(0, report_of(1));
  board.metrics.validation_loss().put(2, {17 + 18 + 19 + 20 + 21, 5});
  board.metrics.validation_loss().put(0, {36, 8});
  board.metrics.validation_loss().put(1, {100, 8});
  REQUIRE(board.rig.loop.run_until_idle());
  CHECK(board.validation_done.messages.at(0).loss == 11.0);
  CHECK(board.validation_done.messages.at(0).n_tokens == 21);
}

TEST_CASE("a step without a valid token has loss 0, and a count that differs is a bug") {
  Board empty({.n_global_microbatches = 1, .validation = {}, .first_step = 0, .n_steps = 1});
  empty.metrics.loss().put(0, {0, 0});
  empty.metrics.step_report().put(0, report_of(0));
  REQUIRE(empty.rig.loop.run_until_idle());
  CHECK(empty.step_done.messages.at(0).loss == 0);
  Board wrong({.n_global_microbatches = 1, .validation = {}, .first_step = 0, .n_steps = 1});
  wrong.metrics.loss().put(0, {3, 3});
  wrong.metrics.step_report().put(0, report_of(4));
  CHECK_THROWS_AS(wrong.rig.loop.run_until_idle(), ContractBroken);
}

TEST_CASE("a step is reported only when all of its losses and its report are here") {
  Board board({.n_global_microbatches = 2, .validation = {}, .first_step = 0, .n_steps = 2});
  board.metrics.loss().put(2, {1, 1});
  board.metrics.loss().put(3, {1, 1});
  board.metrics.loss().put(0, {1, 1});
  board.metrics.step_report().put(0, report_of(2));
  board.metrics.step_report().put(1, report_of(2));
  board.rig.loop.run_until_idle();
  CHECK(board.step_done.keys.empty());
  board.metrics.loss().put(1, {1, 1});
  REQUIRE(board.rig.loop.run_until_idle());
  CHECK(board.step_done.keys == std::vector<std::int64_t>{0, 1});
}
