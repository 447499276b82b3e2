#include "schedules/pipeline.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "schedules/pipeline_file.h"
#include "src/base/error.h"
#include "tests/schedules/pipelines.h"

using namespace llm;

namespace {

using enum Action::Kind;

/// By action: where it stands in the schedule.
using Places = std::map<Action, int>;

/// Where each action stands; every one at one place.
Places places_in(const Schedule& schedule) {
  Places places;
  for (Action action : schedule) {
    action.beside_next = false;
    REQUIRE(places.emplace(action, static_cast<int>(places.size())).second);
  }
  return places;
}

/// A forward, then one backward or both halves; gives the places of what is done to the chunk.
void check_microbatch(const Places& places, int m, int chunk) {
  const bool whole = places.count({backward, m, chunk}) == 1;
  REQUIRE(places.count({backward_input, m, chunk}) == (whole ? 0 : 1));
  REQUIRE(places.count({backward_weight, m, chunk}) == (whole ? 0 : 1));
  REQUIRE(places.count({forward, m, chunk}) == 1);
  const int begun = places.at({forward, m, chunk});
  if (whole) {
    REQUIRE(begun < places.at({backward, m, chunk}));
  } else {
    REQUIRE(begun < places.at({backward_input, m, chunk}));
    REQUIRE(places.at({backward_input, m, chunk}) < places.at({backward_weight, m, chunk}));
  }
}

}  // namespace

TEST_CASE("each chunk does every microbatch once, in order, a backward after its forward") {
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    INFO(name);
    REQUIRE(pipeline.n_ranks == shape.n_ranks);
    REQUIRE(pipeline.n_chunks == shape.n_chunks);
    REQUIRE(pipeline.n_microbatches == shape.n_microbatches);
    REQUIRE_NOTHROW(check(pipeline));
    for (const Schedule& schedule : pipeline.schedules) {
      const Places places = places_in(schedule);
      const bool is_split = name.starts_with("zero");
      const int n_wanted = shape.n_chunks * shape.n_microbatches * (is_split ? 3 : 2);
      REQUIRE(static_cast<int>(places.size()) == n_wanted);
      for (int chunk = 0; chunk < shape.n_chunks; ++chunk) {
        for (int m = 0; m < shape.n_microbatches; ++m) check_microbatch(places, m, chunk);
      }
      std::map<std::pair<Action::Kind, int>, int> next;
      for (const Action& a : schedule) REQUIRE(a.microbatch == next[{a.kind, a.chunk}]++);
    }
  }
}

TEST_CASE("every stage has a place of its own, and neighbours in the model are neighbours") {
  for (const auto& [placement, v] :
       std::vector<std::pair<Placement, int>>{{Placement::looped, 1},
                                              {Placement::looped, 2},
                                              {Placement::looped, 4},
                                              {Placement::zig_zag, 2}}) {
    for (int p = 1; p <= 8; ++p) {
      Pipeline pipeline;
      pipeline.n_ranks = p;
      pipeline.n_chunks = v;
      pipeline.placement = placement;
      for (int stage = 0; stage < p * v; ++stage) {
        const ChunkPlace place = pipeline.place_of(stage);
        REQUIRE(pipeline.stage_of(place) == stage);
        if (stage == 0) continue;
        const int step = std::abs(place.rank - pipeline.place_of(stage - 1).rank);
        const bool goes_around = placement == Placement::looped && step == p - 1;
        REQUIRE((step <= 1 || goes_around));
      }
      REQUIRE(pipeline.place_of(0) == ChunkPlace{0, 0});
      const int last = placement == Placement::zig_zag ? 0 : p - 1;
      REQUIRE(pipeline.place_of(p * v - 1) == ChunkPlace{last, v - 1});
    }
  }
}

TEST_CASE("no rank holds more activations than its schedule says") {
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    const auto [p, v, m] = shape;
    for (int rank = 0; rank < p; ++rank) {
      INFO(name << ", rank " << rank);
      const int peak = peak_activations(pipeline.schedules[static_cast<std::size_t>(rank)]);
      if (name.starts_with("gpipe")) REQUIRE(peak == m);
      if (name.starts_with("1f1b ")) REQUIRE(peak == std::min(p - rank, m));
      if (name.starts_with("1f1b_pairs")) REQUIRE(peak == std::min(2 * (p - rank), m));
      if (name.starts_with("zero_bubble ")) REQUIRE(peak == std::min(p, m));
      if (name.starts_with("zero_bubble_v")) REQUIRE(peak <= 2 * std::min(p, m));
      if (name.starts_with("interleaved") && v > 1) {
        REQUIRE(peak <= std::min(2 * (p - rank - 1) + (v - 1) * p + 1, v * m));
      }
    }
  }
}

TEST_CASE("an activation lives until its backward, or both halves, are done") {
  const Schedule schedule{{forward, 0},           {forward, 0, 1},         {backward_input, 0, 1},
                          {forward, 1},           {backward_weight, 0, 1}, {backward, 0},
                          {backward_input, 1, 0}, {backward_weight, 1, 0}};
  CHECK(peak_activations(schedule) == 3);
  CHECK(peak_activations(schedule, 0) == 2);
  CHECK(peak_activations(schedule, 1) == 1);
  CHECK(peak_split_backwards(schedule) == 1);
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    for (const Schedule& one : pipeline.schedules) {
      INFO(name << ": " << to_string(one));
      int together = 0;
      for (int chunk = 0; chunk < shape.n_chunks; ++chunk) {
        REQUIRE(peak_activations(one, chunk) <= peak_activations(one));
        together += peak_activations(one, chunk);
      }
      REQUIRE(peak_activations(one) <= together);
      REQUIRE(peak_split_backwards(one) <= peak_activations(one));
    }
  }
}

TEST_CASE("the orders are the published ones") {
  CHECK(to_string(gpipe(2, 3).schedules[0]) == "F0 F1 F2 B0 B1 B2");
  CHECK(to_string(one_f_one_b(1, 3).schedules[0]) == "F0 B0 F1 B1 F2 B2");
  CHECK(to_string(one_f_one_b(2, 3).schedules[1]) == "F0 B0 F1 B1 F2 B2");
  CHECK(to_string(one_f_one_b(3, 4).schedules[0]) == "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK(to_string(one_f_one_b(4, 2).schedules[0]) == "F0 F1 B0 B1");
  CHECK(to_string(one_f_one_b_pairs(1, 3).schedules[0]) == "F0 F1|B0 F2|B1 B2");
  CHECK(to_string(one_f_one_b_pairs(2, 5).schedules[0]) == "F0 F1 F2 F3|B0 F4|B1 B2 B3 B4");
  CHECK(to_string(one_f_one_b_pairs(2, 2).schedules[0]) == "F0 F1 B0 B1");
  const Pipeline megatron = interleaved({.n_ranks = 2, .n_chunks = 2, .n_microbatches = 4});
  CHECK(to_string(megatron.schedules[0]) ==
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  CHECK(to_string(megatron.schedules[1]) ==
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
  const Pipeline h1 = zero_bubble(3, 4);
  CHECK(to_string(h1.schedules[0]) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  CHECK(to_string(h1.schedules[2]) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
  CHECK(peak_split_backwards(h1.schedules[0]) == 1);
  CHECK(peak_split_backwards(h1.schedules[2]) == 3);
  const Pipeline v = zero_bubble_v(2, 3);
  CHECK(to_string(v.schedules[0]) ==
        "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 I2.0 "
        "W2.0");
}

TEST_CASE("every kind is made from its shape") {
  CHECK(make_pipeline(ScheduleKind::gpipe, {3, 1, 4}) == gpipe(3, 4));
  CHECK(make_pipeline(ScheduleKind::one_f_one_b, {3, 1, 4}) == one_f_one_b(3, 4));
  CHECK(make_pipeline(ScheduleKind::one_f_one_b_pairs, {3, 1, 4}) == one_f_one_b_pairs(3, 4));
  CHECK(make_pipeline(ScheduleKind::interleaved, {3, 2, 4}) == interleaved({3, 2, 4}));
  CHECK(make_pipeline(ScheduleKind::zero_bubble, {3, 1, 4}) == zero_bubble(3, 4));
  CHECK(make_pipeline(ScheduleKind::zero_bubble_v, {3, 2, 4}) == zero_bubble_v(3, 4));
}

TEST_CASE("shapes that are no pipeline are refused") {
  CHECK_THROWS_AS(gpipe(0, 1), ContractBroken);
  CHECK_THROWS_AS(one_f_one_b(2, 0), ContractBroken);
  CHECK_THROWS_AS(interleaved({2, 0, 1}), ContractBroken);
  CHECK_THROWS_AS(make_pipeline(ScheduleKind::gpipe, {2, 2, 1}), ContractBroken);
  CHECK_THROWS_AS(make_pipeline(ScheduleKind::zero_bubble_v, {2, 1, 1}), ContractBroken);
}
