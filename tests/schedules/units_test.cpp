#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "schedules/units.h"
#include "src/base/error.h"

using namespace llm;

namespace {

/// Embedding, four blocks and head, as a forward and a backward read them.
const std::vector<std::vector<int>> forward_and_backward = {{0}, {1}, {2}, {3}, {4},
                                                            {5}, {4}, {3}, {2}, {1}};
const std::vector<std::int64_t> unit_bytes = {90, 10, 10, 10, 10, 40};

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// Carries the plan out use by use; what holds at each moment is checked.
void check_plan(const std::vector<std::vector<int>>& uses, const GatherPolicy& policy,
                std::vector<int> done_with = {}) {
  const GatherPlan plan = plan_gathers(uses, unit_bytes, policy, done_with);
  if (done_with.empty()) {
    done_with.resize(uses.size());
    std::iota(done_with.begin(), done_with.end(), 0);
  }
  const auto n_gathers = static_cast<int>(plan.gathers.size());
  int n_begun_uses = 0;  // gathers whose first use has begun
  int next = 0;
  std::vector<int> in_slot(plan.slot_bytes.size(), -1);  // by slot: the gather
  for (int use = 0; use < static_cast<int>(uses.size()); ++use) {
    while (n_begun_uses < n_gathers && plan.gathers[n_begun_uses].first_use <= use) ++n_begun_uses;
    for (; next < n_gathers && next < n_begun_uses + policy.n_ahead; ++next) {
      const UnitGather& gather = plan.gathers[next];
      int& slot = in_slot[gather.slot];
      if (slot >= 0) REQUIRE(done_with[plan.gathers[slot].last_use] < use);
      REQUIRE(plan.slot_bytes[gather.slot] >= unit_bytes[gather.unit]);
      slot = next;
    }
    for (const int unit : uses[use]) {
      const bool is_there = std::any_of(in_slot.begin(), in_slot.end(), [&](int g) {
        return g >= 0 && plan.gathers[g].unit == unit && plan.gathers[g].first_use <= use &&
               use <= plan.gathers[g].last_use;
      });
      REQUIRE(is_there);
    }
  }
  REQUIRE(next == n_gathers);
}

}  // namespace

TEST_CASE("a layer of at least so many parameters is a unit, the others together are one") {
  const std::vector<LayerParameters> layers = {{-1, 300}, {0, 100}, {1, 100}, {2, 100}, {3, 20}};
  CHECK(make_units(layers, 0) == std::vector<Unit>{{{-1, 0, 1, 2, 3}, 620}});
  CHECK(make_units(layers, 1).size() == 5);
  CHECK(make_units(layers, 100) ==
        std::vector<Unit>{{{-1}, 300}, {{0}, 100}, {{1}, 100}, {{2}, 100}, {{3}, 20}});
  CHECK(make_units(layers, 101) == std::vector<Unit>{{{-1}, 300}, {{0, 1, 2, 3}, 320}});
  CHECK(make_units(layers, 301) == std::vector<Unit>{{{-1, 0, 1, 2, 3}, 620}});
}

TEST_CASE("small layers between large ones are one unit though they are no neighbours") {
  const std::vector<Unit> units = make_units({{-1, 5}, {0, 100}, {1, 100}, {2, 7}}, 50);
  CHECK(units == std::vector<Unit>{{{-1, 2}, 12}, {{0}, 100}, {{1}, 100}});
  CHECK(unit_of(units, 2) == 0);
  CHECK(unit_of(units, 1) == 2);
  CHECK_THROWS_AS(unit_of(units, 3), ContractBroken);
}

TEST_CASE("a unit is gathered for its forward and again for its backward, but for the last one") {
  const GatherPlan plan = plan_gathers(forward_and_backward, unit_bytes, {.n_ahead = 1});
  std::vector<int> units;
  for (const UnitGather& gather : plan.gathers) units.push_back(gather.unit);
  CHECK(units == std::vector<int>{0, 1, 2, 3, 4, 5, 4, 3, 2, 1});
  const GatherPlan no_head = plan_gathers({{0}, {1}, {2}, {2}, {1}}, {1, 1, 1}, {.n_ahead = 1});
  CHECK(no_head.gathers.size() == 4);  // 2 stays between its two uses
}

TEST_CASE("without resharding a unit is gathered once and stays to its last use") {
  const GatherPlan plan =
      plan_gathers(forward_and_backward, unit_bytes, {.n_ahead = 1, .reshard = false});
  CHECK(plan.gathers.size() == 6);
  CHECK(plan.gathers[1] == UnitGather{1, 1, 9, plan.gathers[1].slot});
  // The embedding's memory serves once more: its backward reads no parameter.
  CHECK(sum(plan.slot_bytes) == 90 + 4 * 10);
}

TEST_CASE("memory is that of the units in use and of those gathered ahead") {
  CHECK(sum(plan_gathers(forward_and_backward, unit_bytes, {.n_ahead = 0}).slot_bytes) == 90);
  // The head has the embedding's memory: and two blocks alternate beside it.
  CHECK(sum(plan_gathers(forward_and_backward, unit_bytes, {.n_ahead = 1}).slot_bytes) ==
        90 + 10 + 10);
  CHECK(sum(plan_gathers(forward_and_backward, unit_bytes, {.n_ahead = 2}).slot_bytes) ==
        90 + 10 + 10 + 10);
  CHECK(sum(plan_gathers({{1}, {2}, {3}, {3}, {2}, {1}}, unit_bytes, {.n_ahead = 9}).slot_bytes) ==
        5 * 10);
}

TEST_CASE("every use finds its units, and no slot is filled while it is read") {
  std::vector<std::vector<std::vector<int>>> lists = {forward_and_backward};
  // Two microbatches one after the other, a table that head and embedding read, one unit for all.
  lists.push_back({{0}, {1}, {0}, {1}, {5}, {1}, {5}, {1}});
  lists.push_back({{0}, {1}, {2}, {5, 0}, {2}, {1}});
  lists.push_back({{3}, {3}, {3}});
  for (const auto& uses : lists) {
    for (const int n_ahead : {0, 1, 2, 3, 100}) {
      for (const bool reshard : {true, false}) check_plan(uses, {n_ahead, reshard});
    }
  }
  CHECK(plan_gathers({{3}, {3}, {3}}, unit_bytes, {}).gathers.size() == 1);
}

TEST_CASE("a unit stays as long as work that reads it may be under way") {
  // A forward and a backward in turns, each use done with the next turn of both.
  const std::vector<std::vector<int>> uses = {{0}, {5}, {1}, {4}, {2}, {3}, {3}, {2}, {4}, {1}};
  const std::vector<int> done_with = {3, 3, 5, 5, 7, 7, 9, 9, 9, 9};
  for (const int n_ahead : {0, 1, 2, 3, 100}) {
    for (const bool reshard : {true, false}) check_plan(uses, {n_ahead, reshard}, done_with);
  }
  const GatherPlan plan = plan_gathers(uses, unit_bytes, {.n_ahead = 0}, done_with);
  // 2 and 3 are read again before they are given back, 1 and 4 are not.
  CHECK(plan.gathers.size() == 8);
  // In the second turn the first one's two are there as well.
  CHECK(sum(plan.slot_bytes) == 90 + 40 + 10 + 10);
}
