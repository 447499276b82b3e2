#include "schedules/simulation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "schedules/pipeline_file.h"
#include "tests/schedules/pipelines.h"

using namespace llm;

namespace {

/// Costs of a rank's whole share, spread evenly over its chunks.
PipelineCosts costs_of(const Pipeline& pipeline, ActionCosts of_rank, double message = 0) {
  const double n = pipeline.n_chunks;
  const ActionCosts of_chunk{of_rank.forward / n, of_rank.backward / n, of_rank.backward_input / n,
                             of_rank.backward_weight / n};
  return {std::vector<ActionCosts>(static_cast<std::size_t>(pipeline.n_stages()), of_chunk),
          message};
}

double makespan(const Pipeline& pipeline, ActionCosts of_rank = {}) {
  return simulate(pipeline, costs_of(pipeline, of_rank)).makespan;
}

const std::vector<ActionCosts> many_costs{
    {1, 2, 1, 1}, {1, 2, 1.25, 0.75}, {1, 1.5, 1, 0.5}, {1, 2.5, 1.5, 1}};

}  // namespace

TEST_CASE("gpipe and 1f1b are idle for (p - 1) / (m + p - 1), whatever a backward costs") {
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    if (!name.starts_with("gpipe") && !name.starts_with("1f1b")) continue;
    for (const ActionCosts& costs : many_costs) {
      INFO(name);
      const double p = shape.n_ranks, m = shape.n_microbatches;
      const Simulation simulation = simulate(pipeline, costs_of(pipeline, costs));
      REQUIRE(simulation.finished());
      REQUIRE(simulation.bubble() == Approx((p - 1) / (m + p - 1)).margin(1e-12));
      REQUIRE(simulation.makespan == Approx((m + p - 1) * (costs.forward + costs.backward)));
      for (int rank = 0; rank < shape.n_ranks; ++rank) {
        REQUIRE(simulation.bubble(rank) == Approx(simulation.bubble()).margin(1e-12));
        REQUIRE(simulation.busy[static_cast<std::size_t>(rank)] ==
                Approx(m * (costs.forward + costs.backward)));
      }
    }
  }
}

TEST_CASE("interleaved is idle for (p - 1) / (v m + p - 1) where p divides m") {
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    if (!name.starts_with("interleaved")) continue;
    INFO(name);
    const double p = shape.n_ranks, m = shape.n_microbatches, v = shape.n_chunks;
    const Simulation simulation = simulate(pipeline, costs_of(pipeline, {}));
    if (shape.n_microbatches % shape.n_ranks == 0) {
      REQUIRE(simulation.bubble() == Approx((p - 1) / (v * m + p - 1)).margin(1e-12));
    }
    const Pipeline plain = one_f_one_b(shape.n_ranks, shape.n_microbatches);
    REQUIRE(simulation.makespan <= makespan(plain) + 1e-9);
  }
}

TEST_CASE("zero_bubble is idle for (p - 1) (F + I - W) where there are p microbatches") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = p; m <= 16; ++m) {
      for (const ActionCosts& costs : many_costs) {
        INFO(p << " ranks, " << m << " microbatches");
        const double idle =
            (p - 1) * (costs.forward + costs.backward_input - costs.backward_weight);
        REQUIRE(makespan(zero_bubble(p, m), costs) ==
                Approx(m * (costs.forward + costs.backward) + idle));
      }
    }
  }
}

TEST_CASE("zero_bubble_v has no gap where F = I = W and there are 2 p - 1 microbatches") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p - 1; m <= 24; ++m) {
      INFO(p << " ranks, " << m << " microbatches");
      const Simulation simulation = simulate(zero_bubble_v(p, m));
      for (int rank = 0; rank < p; ++rank) {
        const auto& actions = simulation.actions[static_cast<std::size_t>(rank)];
        REQUIRE(actions.front().begin == rank);
        REQUIRE(actions.back().end == rank + 6 * m);
      }
      REQUIRE(simulation.makespan == 6 * m + p - 1);
    }
  }
}

TEST_CASE("schedules that split their backwards are never longer than 1f1b") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      for (const ActionCosts& costs : many_costs) {
        INFO(p << " ranks, " << m << " microbatches");
        const double longest = makespan(one_f_one_b(p, m), costs) + 1e-9;
        REQUIRE(makespan(zero_bubble(p, m), costs) <= longest);
        REQUIRE(makespan(zero_bubble_v(p, m), costs) <= longest);
      }
    }
  }
}

TEST_CASE("no action begins before its message and its rank's last action are done") {
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    if (shape.n_ranks > 4) continue;
    INFO(name);
    const double message = 0.25;
    const Simulation simulation = simulate(pipeline, costs_of(pipeline, {}, message));
    REQUIRE(simulation.finished());
    std::map<std::pair<int, Action>, TimedAction> by_stage;
    for (int rank = 0; rank < shape.n_ranks; ++rank) {
      double now = 0;
      const TimedAction* before = nullptr;
      for (const TimedAction& timed : simulation.actions[static_cast<std::size_t>(rank)]) {
        if (before != nullptr && before->action.beside_next) {
          REQUIRE(timed.begin == before->begin);
          REQUIRE(timed.end == before->end);
        } else {
          REQUIRE(timed.begin >= now);
        }
        now = timed.end;
        before = &timed;
        Action action = timed.action;
        const int stage = pipeline.stage_of({rank, action.chunk});
        action.chunk = 0;
        action.beside_next = false;
        if (action.kind == Action::Kind::backward_input) action.kind = Action::Kind::backward;
        by_stage[{stage, action}] = timed;
      }
    }
    for (const auto& [key, timed] : by_stage) {
      const auto& [stage, action] = key;
      const int from = stage + (action.kind == Action::Kind::forward ? -1 : 1);
      if (action.kind == Action::Kind::backward_weight || from < 0 || from == pipeline.n_stages()) {
        continue;
      }
      const bool is_near = pipeline.place_of(from).rank == pipeline.place_of(stage).rank;
      REQUIRE(timed.begin >= by_stage.at({from, action}).end + (is_near ? 0 : message));
    }
  }
}

TEST_CASE("paired actions cost a pipeline no idle time where a forward and a backward alternate") {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      for (const ActionCosts& costs : many_costs) {
        INFO(p << " ranks, " << m << " microbatches");
        REQUIRE(makespan(one_f_one_b_pairs(p, m), costs) <=
                makespan(one_f_one_b(p, m), costs) + 1e-9);
      }
    }
  }
}

TEST_CASE("a pair waits for both of its messages and lasts as long as both") {
  const Simulation simulation = simulate(read_pipeline("s.txt", "F0 F1|B0 B1"));
  REQUIRE(simulation.actions[0].size() == 4);
  CHECK(simulation.actions[0][1].begin == 1);
  CHECK(simulation.actions[0][2].begin == 1);
  CHECK(simulation.actions[0][2].end == 4);
  CHECK(simulation.makespan == 6);
  CHECK(simulation.busy[0] == 6);
  CHECK(timeline(simulation, 80) == "rank 0     F0 F1|B0--- B1--- \n");
}

TEST_CASE("a message that takes its time makes a pipeline longer") {
  const Pipeline pipeline = one_f_one_b(4, 8);
  // A microbatch crosses three cuts on its way down and three on its way up.
  CHECK(simulate(pipeline, costs_of(pipeline, {}, 0.5)).makespan >= makespan(pipeline) + 3);
}

TEST_CASE("ranks that wait for each other are named with what they wait for") {
  using enum Action::Kind;
  Pipeline pipeline = one_f_one_b(2, 2);
  pipeline.schedules[0] = {{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}};
  pipeline.schedules[1] = {{forward, 1}, {backward, 1}, {forward, 0}, {backward, 0}};
  const Simulation simulation = simulate(pipeline);
  CHECK_FALSE(simulation.finished());
  CHECK(simulation.deadlock ==
        "rank 0 waits at B0 for B0 of rank 1; rank 1 waits at F1 for F1 of rank 0");
}

TEST_CASE("a timeline has a row a rank with every action where it begins") {
  CHECK(timeline(simulate(one_f_one_b(2, 2)), 80) ==
        "rank 0     F0 F1 ......B0--- ...B1--- \n"
        "rank 1     ...F0 B0--- F1 B1--- ......\n");
  CHECK(timeline(simulate(zero_bubble(2, 2)), 80) ==
        "rank 0     F0 F1 ...I0 W0 I1 W1 \n"
        "rank 1     ...F0 I0 F1 I1 W0 W1 \n");
  CHECK(timeline(simulate(one_f_one_b(8, 64)), 120).empty());
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    const std::string text = timeline(simulate(pipeline), 120);
    if (text.empty()) continue;
    INFO(name << "\n" << text);
    REQUIRE(std::count(text.begin(), text.end(), '\n') == shape.n_ranks);
    std::size_t n_actions = 0;
    for (const Schedule& schedule : pipeline.schedules) n_actions += schedule.size();
    REQUIRE(static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
              return std::string("FBIW").find(c) != std::string::npos;
            })) == n_actions);
    for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      REQUIRE(text.find('\n', begin) - begin <= 120);
    }
  }
}
