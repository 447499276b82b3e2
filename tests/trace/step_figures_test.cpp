#include "src/trace/step_figures.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/trace/report.h"
#include "tests/trace/timelines.h"

using namespace llm;

namespace {

/// 1f1b of two microbatches on two ranks, 1 ms a forward, 2 ms a backward, messages of 100 us;
/// then a sum over the pipeline and the update.
TimelineMaker two_ranks() {
  TimelineMaker maker(2);
  maker.timeline().grid = {.dp = 1, .pp = 2, .tp = 1};
  maker.timeline().pipeline = one_f_one_b(2, 2);
  maker.action(0, "F", 0, {0, 1000});
  maker.action(0, "F", 1, {1000, 2000});
  maker.awaited({.from = 0, .sent_us = 1000, .to = 1, .arrived_us = 1100}, "activation", 0);
  maker.action(1, "F", 0, {1100, 2100});
  maker.action(1, "B", 0, {2100, 4100});
  maker.message({.from = 0, .sent_us = 2000, .to = 1, .arrived_us = 2100});
  maker.awaited({.from = 1, .sent_us = 4100, .to = 0, .arrived_us = 4200}, "input_grad", 2000);
  maker.action(0, "B", 0, {4200, 6200});
  maker.action(1, "F", 1, {4100, 5100});
  maker.action(1, "B", 1, {5100, 7100});
  maker.awaited({.from = 1, .sent_us = 7100, .to = 0, .arrived_us = 7200}, "input_grad", 6200);
  maker.action(0, "B", 1, {7200, 9200});
  maker.awaited({.from = 0, .sent_us = 9200, .to = 1, .arrived_us = 9300}, "piece", 7100);
  maker.op(0, "adamw", {9200, 10'000});
  maker.op(1, "adamw", {9300, 10'100});
  maker.step(0, 1, {0, 10'000});
  maker.step(1, 1, {0, 10'100});
  return maker;
}

}  // namespace

TEST_CASE("a rank's time is its work, what it waited for by message, and the rest") {
  const Timeline timeline = two_ranks().made();
  const auto steps = step_figures(timeline);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].step == 1);
  CHECK(steps[0].wall_ns() == 10'100'000);
  const RankFigures& one = steps[0].ranks[0];
  CHECK(one.wall_ns == 10'000'000);
  CHECK(one.model_ns == 6'800'000);
  CHECK(one.exposed_ns == std::map<std::string, std::int64_t>{{"input_grad", 3'200'000}});
  const RankFigures& two = steps[0].ranks[1];
  CHECK(two.model_ns == 6'800'000);
  CHECK(two.exposed_ns ==
        std::map<std::string, std::int64_t>{{"activation", 1'100'000}, {"piece", 2'200'000}});
  for (const RankFigures& rank : steps[0].ranks) {
    CHECK(rank.model_ns + rank.sums_ns + rank.actors_ns + rank.exposed_all_ns() +
              rank.own_waits_ns + rank.other_ns ==
          rank.wall_ns);
  }
  // On their way to rank 1: 1000 to 1100, 2000 to 2100 and 9200 to 9300; it worked in the second.
  CHECK(two.in_flight_ns == 300'000);
  CHECK(two.overlapped_ns == 100'000);
}

TEST_CASE("a pipeline's bubble stands beside that of its schedule with the measured costs") {
  const Timeline timeline = two_ranks().made();
  const auto steps = step_figures(timeline);
  REQUIRE(steps[0].flushes.size() == 1);
  const FlushFigures& flush = steps[0].flushes[0];
  CHECK(flush.ranks == std::vector<int>{0, 1});
  CHECK(flush.end_ns - flush.begin_ns == 9'200'000);
  CHECK(flush.bubble == Approx(1 - 12.0 / 18.4));
  CHECK(flush.planned_ns == 9'000'000);
  CHECK(flush.planned_bubble == Approx(1.0 / 3));
  REQUIRE(flush.planned.size() == 8);
  CHECK(flush.planned[0].name == "F0");
  CHECK(flush.planned[0].begin_ns == 0);
}

TEST_CASE("a pair is one action of the trace and two of its schedule, and both lanes compute") {
  TimelineMaker maker(2);
  maker.timeline().grid = {.dp = 1, .pp = 2, .tp = 1};
  maker.timeline().pipeline = one_f_one_b_pairs(2, 2);
  for (const std::int64_t m : {0, 1}) maker.action(0, "F", m, {1000 * m, 1000 * m + 1000});
  maker.awaited({.from = 0, .sent_us = 1000, .to = 1, .arrived_us = 1100}, "activation", 0);
  maker.action(1, "F", 0, {1100, 2100});
  maker.message({.from = 0, .sent_us = 2000, .to = 1, .arrived_us = 2100});
  maker.action(1, "F|B", 0, {2100, 5100});
  maker.awaited({.from = 1, .sent_us = 5100, .to = 0, .arrived_us = 5200}, "input_grad", 2000);
  maker.action(0, "B", 0, {5200, 7200});
  maker.action(1, "B", 1, {5100, 7100});
  maker.awaited({.from = 1, .sent_us = 7100, .to = 0, .arrived_us = 7200}, "input_grad", 7150);
  maker.action(0, "B", 1, {7200, 9200});
  for (const int rank : {0, 1}) maker.step(rank, 1, {0, 9200});
  Timeline timeline = maker.made();
  for (TimelineRow& row : timeline.ranks[1].rows) {
    if (row.name == "compute queue") row.name = "compute queue, backward of a pair";
  }
  const auto steps = step_figures(timeline);
  CHECK(steps[0].ranks[1].model_ns == 6'000'000);
  const FlushFigures& flush = steps[0].flushes.at(0);
  CHECK(flush.planned_ns == 9'000'000);
  REQUIRE(flush.planned.size() == 8);
  CHECK(flush.planned[5].name == "F1");
  CHECK(flush.planned[5].begin_ns == flush.planned[6].begin_ns);
}

TEST_CASE("another schedule than the one that ran gives no plan, and no pipeline no bubble") {
  TimelineMaker maker = two_ranks();
  maker.timeline().pipeline = one_f_one_b(2, 3);
  Timeline timeline = maker.made();
  auto steps = step_figures(timeline);
  CHECK(steps[0].flushes[0].planned_ns == 0);
  CHECK(steps[0].bubble() > 0);
  timeline.grid = {.dp = 2, .pp = 1, .tp = 1};
  steps = step_figures(timeline);
  CHECK(steps[0].flushes.empty());
}

TEST_CASE("the rank that computes longer than the median is the slowest, by so much") {
  TimelineMaker maker(3);
  for (int rank = 0; rank < 3; ++rank) {
    maker.action(rank, "F", 0, {0, rank == 1 ? 1500 : 1000});
    maker.step(rank, 1, {0, 2000});
    maker.op(rank, "adamw", {2100, 2200});
    maker.step(rank, 2, {2000, 4000});
  }
  const auto steps = step_figures(maker.made());
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].slowest == 1);
  CHECK(steps[0].beyond_median_ns == 500'000);
  CHECK(steps[1].beyond_median_ns == 0);
  CHECK(step_figures(maker.made(), 2, 2).size() == 1);
  CHECK(step_figures(maker.made(), 3).empty());
}

TEST_CASE("a step that not all ranks have is left out, and without steps all is one") {
  TimelineMaker maker(2);
  maker.action(0, "F", 0, {500, 1000});
  maker.action(1, "F", 0, {600, 2000});
  const auto whole = step_figures(maker.made());
  REQUIRE(whole.size() == 1);
  CHECK(whole[0].step == 0);
  CHECK(whole[0].wall_ns() == 1'500'000);
  maker.step(0, 1, {0, 2000});
  CHECK(step_figures(maker.made()).empty());
}

TEST_CASE("the report names the rank, the action and what was waited for") {
  const Timeline timeline = two_ranks().made();
  const auto steps = step_figures(timeline);
  const std::string text = report_text(timeline, steps, 1);
  CHECK(text.find("rank 1 stage B") != std::string::npos);
  CHECK(text.find("input_grad 3.20") != std::string::npos);
  CHECK(text.find("34.8 % (33.3 %)") != std::string::npos);
  CHECK_THROWS_AS(report_text(timeline, steps, 7), UsageError);
  const auto json = nlohmann::json::parse(report_json(timeline, steps));
  CHECK(json["steps"][0]["ranks"][0]["exposed_ms"]["input_grad"] == Approx(3.2));
  CHECK(json["steps"][0]["planned_bubble"] == Approx(1.0 / 3));
  CHECK(json["steps"][0]["path"].size() > 4);
}
