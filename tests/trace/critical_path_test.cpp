#include "src/trace/critical_path.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/trace/timelines.h"

using namespace llm;

namespace {

/// "100: rank 0 stage F; 200: ...", each with its length in us.
std::string path_of(const Timeline& timeline, std::size_t rank, std::int64_t end_us,
                    std::int64_t begin_us = 0) {
  std::vector<Activity> activities;
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) activities.emplace_back(timeline, r);
  const auto path =
      critical_path(activities, messages_of(timeline), rank, begin_us * 1000, end_us * 1000);
  std::int64_t at_ns = begin_us * 1000;
  std::string text;
  for (const PathPart& part : path) {
    CHECK(part.begin_ns == at_ns);
    CHECK(part.end_ns >= part.begin_ns);
    at_ns = part.end_ns;
  }
  CHECK(at_ns == end_us * 1000);
  for (const PathSum& sum : in_order(path)) {
    text += (text.empty() ? "" : "; ") + std::to_string(sum.ns / 1000) + ": " +
            text_of(timeline, sum.first);
  }
  return text;
}

}  // namespace

TEST_CASE("on one rank the critical path is what it worked at, one after the other") {
  TimelineMaker maker(1);
  maker.action(0, "F", 0, {0, 1000});
  maker.action(0, "B", 0, {1010, 3000});
  maker.op(0, "adamw", {3020, 3500});
  CHECK(path_of(maker.made(), 0, 3500) ==
        "1010: rank 0 stage F; 2010: rank 0 stage B; 480: rank 0 compute queue adamw");
}

TEST_CASE("a pause that a message ended leads to what its sender did before") {
  TimelineMaker maker(2);
  maker.action(0, "F", 0, {0, 5000});
  maker.awaited({.from = 0, .sent_us = 5010, .to = 1, .arrived_us = 5200}, "activation", 100);
  maker.action(1, "F", 0, {5210, 8000});
  CHECK(path_of(maker.made(), 1, 8000) ==
        "5010: rank 0 stage F; 200: rank 1 receiver waits for activation from rank 0; "
        "2790: rank 1 stage F");
}

TEST_CASE("work that was going on when a message came is what counts, not the message") {
  TimelineMaker maker(2);
  maker.action(0, "F", 0, {0, 5000});
  maker.awaited({.from = 0, .sent_us = 5010, .to = 1, .arrived_us = 5200}, "activation", 100);
  maker.op(1, "other work", {3000, 7000});
  maker.action(1, "F", 0, {7010, 8000});
  CHECK(path_of(maker.made(), 1, 8000, 3000) ==
        "4010: rank 1 compute queue other work; 990: rank 1 stage F");
}

TEST_CASE("of two messages the path goes along the one that let the rank go on") {
  TimelineMaker maker(3);
  maker.action(0, "F", 0, {0, 2000});
  maker.action(1, "B", 0, {0, 6000});
  maker.wait(2, 1, "first", {0, 2100});
  maker.message({.from = 0, .sent_us = 2010, .to = 2, .arrived_us = 2100});
  maker.wait(2, 2, "second", {0, 6100});
  maker.message({.from = 1, .sent_us = 6010, .to = 2, .arrived_us = 6100, .to_row = 2});
  // Both are needed: the stage is woken by whoever took the later one. A third comes just then.
  maker.wait(2, 0, "both", {0, 6102}, 2);
  maker.wait(2, 3, "something else", {0, 6101});
  maker.action(2, "F", 0, {6110, 9000});
  CHECK(path_of(maker.made(), 2, 9000) ==
        "6010: rank 1 stage B; 100: rank 2 sender waits for second from rank 1; "
        "2890: rank 2 stage F");
}

TEST_CASE("the bubble of a pipeline leads through the ranks in the order of the schedule") {
  // F0 F1 B0 B1 on rank 0 and F0 B0 F1 B1 on rank 1, 1 ms a forward, 2 a backward.
  TimelineMaker maker(2);
  maker.action(0, "F", 0, {0, 1000});
  maker.action(0, "F", 1, {1000, 2000});
  maker.awaited({.from = 0, .sent_us = 1001, .to = 1, .arrived_us = 1100}, "activation", 0);
  maker.action(1, "F", 0, {1100, 2100});
  maker.action(1, "B", 0, {2100, 4100});
  maker.message({.from = 0, .sent_us = 2001, .to = 1, .arrived_us = 2100});  // nobody waits
  maker.action(1, "F", 1, {4100, 5100});
  maker.action(1, "B", 1, {5100, 7100});
  maker.awaited({.from = 1, .sent_us = 4101, .to = 0, .arrived_us = 4200}, "input_grad", 2000);
  maker.action(0, "B", 0, {4200, 6200});
  maker.awaited({.from = 1, .sent_us = 7101, .to = 0, .arrived_us = 7200}, "input_grad", 6200);
  maker.action(0, "B", 1, {7200, 9200});
  CHECK(path_of(maker.made(), 0, 9200) ==
        "1001: rank 0 stage F; 99: rank 1 receiver waits for activation from rank 0; "
        "1000: rank 1 stage F; 2000: rank 1 stage B; 1000: rank 1 stage F; 2001: rank 1 stage B; "
        "99: rank 0 receiver waits for input_grad from rank 1; 2000: rank 0 stage B");
}

TEST_CASE("a rank that passes messages on while it computes does not hide who was late") {
  TimelineMaker maker(3);
  maker.action(0, "B", 0, {0, 8000});
  maker.action(1, "B", 0, {0, 9000});  // busy all the time, and its sender only forwards
  maker.wait(1, 2, "piece", {100, 8100});
  maker.message({.from = 0, .sent_us = 8010, .to = 1, .arrived_us = 8100, .to_row = 2});
  maker.awaited({.from = 1, .sent_us = 8110, .to = 2, .arrived_us = 8200}, "piece", 100);
  maker.op(2, "adamw", {8210, 9000});
  CHECK(path_of(maker.made(), 2, 9000) ==
        "8010: rank 0 stage B; 100: rank 1 sender waits for piece from rank 0; "
        "100: rank 2 receiver waits for piece from rank 1; 790: rank 2 compute queue adamw");
}

TEST_CASE("an actor that keeps its loop, or waits for no message, is named") {
  TimelineMaker maker(2);
  maker.run(0, 2, {0, 50'000});
  maker.awaited({.from = 0, .sent_us = 50'010, .to = 1, .arrived_us = 50'100}, "activation", 0);
  maker.action(1, "F", 0, {50'110, 51'000});
  maker.wait(1, 0, "work beside the loop", {51'000, 60'000});
  maker.op(1, "copy", {60'010, 61'000});
  CHECK(path_of(maker.made(), 1, 61'000) ==
        "50010: rank 0 sender run; 100: rank 1 receiver waits for activation from rank 0; "
        "890: rank 1 stage F; 9010: rank 1 stage waits for work beside the loop; "
        "990: rank 1 compute queue copy");
}

TEST_CASE("a pause that nothing explains is said to be not recorded") {
  TimelineMaker maker(1);
  maker.action(0, "F", 0, {0, 1000});
  maker.action(0, "B", 0, {4000, 5000});
  CHECK(path_of(maker.made(), 0, 5000) ==
        "1000: rank 0 stage F; 3000: rank 0 not recorded; 1000: rank 0 stage B");
}

TEST_CASE("messages that seem to arrive before they were sent end in no circle") {
  TimelineMaker maker(2);
  // Two ranks answer each other within the error of their clocks, for ever, it seems.
  for (std::int64_t n = 0; n < 50; ++n) {
    const std::int64_t at = 1000 + 10 * n;
    maker.awaited(
        {.from = 0, .sent_us = at + 30, .to = 1, .arrived_us = at, .from_row = 0, .to_row = 0},
        "ping", at - 500);
    maker.awaited(
        {.from = 1, .sent_us = at + 30, .to = 0, .arrived_us = at, .from_row = 0, .to_row = 0},
        "pong", at - 500);
  }
  maker.action(0, "F", 0, {0, 400});
  maker.op(1, "end", {1500, 2000});
  const std::string text = path_of(maker.made(), 1, 2000);
  CHECK(text.find("rank 1 compute queue end") != std::string::npos);
}

TEST_CASE("a path ends where its step begins") {
  TimelineMaker maker(2);
  maker.action(0, "F", 0, {0, 5000});
  maker.awaited({.from = 0, .sent_us = 5010, .to = 1, .arrived_us = 5200}, "activation", 100);
  maker.action(1, "F", 0, {5210, 8000});
  CHECK(path_of(maker.made(), 1, 8000, 5100) ==
        "110: rank 1 receiver waits for activation from rank 0; 2790: rank 1 stage F");
}

TEST_CASE("short parts of a path are left out, and do not come between others") {
  const auto part = [](std::uint16_t name, std::int64_t begin_ns, std::int64_t end_ns) {
    return PathPart{PathPart::Kind::work, 0, 0, 0, name, begin_ns, end_ns};
  };
  const std::vector<PathPart> path = {part(1, 0, 100), part(2, 100, 101), part(1, 101, 200),
                                      part(2, 200, 300)};
  CHECK(in_order(path).size() == 4);
  const auto shown = in_order(path, 10);
  REQUIRE(shown.size() == 2);
  CHECK(shown[0].n == 2);
  CHECK(shown[0].ns == 199);
  const auto sums = by_length(path);
  REQUIRE(sums.size() == 2);
  CHECK(sums[0].ns == 199);
  CHECK(sums[1].ns == 101);
}
