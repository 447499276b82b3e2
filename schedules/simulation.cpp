#include "schedules/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "src/base/check.h"

namespace llm {
namespace {

using enum Action::Kind;

constexpr double not_done = std::numeric_limits<double>::infinity();

/// When which message is there, and how far each rank is.
class Clock {
 public:
  Clock(const Pipeline& pipeline, const PipelineCosts& costs)
      : pipeline_(pipeline),
        costs_(costs),
        n_stages_(static_cast<std::size_t>(pipeline.n_stages())) {
    CHECK_CONTRACT(costs.by_stage.empty() || costs.by_stage.size() == n_stages_,
                   "each stage has costs");
    const std::size_t n = n_stages_ * static_cast<std::size_t>(pipeline.n_microbatches);
    forward_end_.assign(n, not_done);
    backward_end_.assign(n, not_done);
    const auto n_ranks = static_cast<std::size_t>(pipeline.n_ranks);
    result_.actions.resize(n_ranks);
    result_.busy.resize(n_ranks);
    for (const Schedule& schedule : pipeline.schedules) {
      result_.peak_activations.push_back(peak_activations(schedule));
    }
  }

  Simulation run() {
    bool moves = true;
    while (moves) {
      moves = false;
      for (int rank = 0; rank < pipeline_.n_ranks; ++rank) {
        while (step(rank)) moves = true;
      }
    }
    for (int rank = 0; rank < pipeline_.n_ranks; ++rank) note_wait(rank);
    return std::move(result_);
  }

 private:
  const Schedule& schedule(int rank) const {
    return pipeline_.schedules[static_cast<std::size_t>(rank)];
  }
  std::vector<TimedAction>& done(int rank) {
    return result_.actions[static_cast<std::size_t>(rank)];
  }
  double& end_of(std::vector<double>& ends, int stage, int microbatch) const {
    return ends[static_cast<std::size_t>(microbatch) * n_stages_ + static_cast<std::size_t>(stage)];
  }
  double cost(int stage, Action::Kind kind) const {
    if (costs_.by_stage.empty()) return ActionCosts{}.of(kind);
    return costs_.by_stage[static_cast<std::size_t>(stage)].of(kind);
  }

  /// The stage whose message an action waits for; -1: none.
  int sender(int stage, Action::Kind kind) const {
    if (kind == forward) return stage - 1;
    if (kind == backward_weight || stage == pipeline_.n_stages() - 1) return -1;
    return stage + 1;
  }

  double message_time(int stage, const Action& action) {
    const int from = sender(stage, action.kind);
    if (from < 0) return 0;
    const double sent =
        end_of(action.kind == forward ? forward_end_ : backward_end_, from, action.microbatch);
    const bool same_rank = pipeline_.place_of(from).rank == pipeline_.place_of(stage).rank;
    return sent + (same_rank ? 0 : costs_.message);
  }

  /// What the rank does next: an action, or the two of a pair; empty when it is done.
  std::span<const Action> next_of(int rank) {
    const std::span<const Action> rest = std::span(schedule(rank)).subspan(done(rank).size());
    if (rest.empty()) return rest;
    return rest.first(rest.front().beside_next ? 2 : 1);
  }

  int stage_of(int rank, const Action& action) const {
    return pipeline_.stage_of({rank, action.chunk});
  }

  bool step(int rank) {
    const std::span<const Action> actions = next_of(rank);
    if (actions.empty()) return false;
    double begin = done(rank).empty() ? 0 : done(rank).back().end;
    double time = 0;
    for (const Action& action : actions) {
      const int stage = stage_of(rank, action);
      begin = std::max(begin, message_time(stage, action));
      time += cost(stage, action.kind);
    }
    if (begin == not_done) return false;
    for (const Action& action : actions) finish(rank, {action, begin, begin + time});
    result_.busy[static_cast<std::size_t>(rank)] += time;
    return true;
  }

  void finish(int rank, const TimedAction& timed) {
    const auto [kind, m, chunk, is_paired] = timed.action;
    const int stage = stage_of(rank, timed.action);
    done(rank).push_back(timed);
    result_.makespan = std::max(result_.makespan, timed.end);
    if (kind == forward) end_of(forward_end_, stage, m) = timed.end;
    if (kind == backward || kind == backward_input) end_of(backward_end_, stage, m) = timed.end;
  }

  void note_wait(int rank) {
    const std::span<const Action> actions = next_of(rank);
    if (actions.empty()) return;
    std::string& text = result_.deadlock;
    if (!text.empty()) text += "; ";
    text += "rank " + std::to_string(rank) + " waits at " +
            to_string(Schedule(actions.begin(), actions.end())) + " for ";
    for (const Action& action : actions) {
      const int stage = stage_of(rank, action);
      if (message_time(stage, action) != not_done) continue;
      const ChunkPlace place = pipeline_.place_of(sender(stage, action.kind));
      Action awaited = action;
      awaited.chunk = place.chunk;
      text += to_string(awaited) + " of rank " + std::to_string(place.rank);
      return;
    }
  }

  const Pipeline& pipeline_;
  const PipelineCosts& costs_;
  const std::size_t n_stages_;
  std::vector<double> forward_end_;   // by microbatch and stage
  std::vector<double> backward_end_;  // of the input half where it is split
  Simulation result_;
};

std::size_t column(double time, double scale) {
  return static_cast<std::size_t>(std::lround(time * scale));
}

}  // namespace

double ActionCosts::of(Action::Kind kind) const {
  switch (kind) {
    case Action::Kind::forward:
      return forward;
    case Action::Kind::backward:
      return backward;
    case Action::Kind::backward_input:
      return backward_input;
    case Action::Kind::backward_weight:
      return backward_weight;
  }
  return 0;
}

double Simulation::bubble() const {
  const double together = std::accumulate(busy.begin(), busy.end(), 0.0);
  return 1 - together / (makespan * static_cast<double>(busy.size()));
}

Simulation simulate(const Pipeline& pipeline, const PipelineCosts& costs) {
  return Clock(pipeline, costs).run();
}

namespace {

/// An action or a pair, as timeline() draws it.
struct Drawn {
  std::string name;
  double begin;
  double end;
};

std::vector<Drawn> drawn(const std::vector<TimedAction>& actions) {
  std::vector<Drawn> all;
  bool is_second = false;
  for (const auto& [action, begin, end] : actions) {
    if (is_second) {
      all.back().name += "|" + to_string(action);
    } else {
      all.push_back({to_string(action), begin, end});
    }
    is_second = action.beside_next;
  }
  return all;
}

}  // namespace

std::string timeline(const Simulation& simulation, int n_columns) {
  double scale = 0;  // columns for one unit of time, so that each action has room for its name
  for (const std::vector<TimedAction>& actions : simulation.actions) {
    for (const Drawn& one : drawn(actions)) {
      const auto n_wanted = static_cast<double>(one.name.size() + 1);
      scale = std::max(scale, n_wanted / (one.end - one.begin));
    }
  }
  const std::size_t title = std::string("rank 0000  ").size();
  if (title + column(simulation.makespan, scale) > static_cast<std::size_t>(n_columns)) return "";
  std::string text;
  for (std::size_t rank = 0; rank < simulation.actions.size(); ++rank) {
    std::string row(column(simulation.makespan, scale), '.');
    for (auto& [name, begin_time, end_time] : drawn(simulation.actions[rank])) {
      const std::size_t begin = column(begin_time, scale);
      const std::size_t end = column(end_time, scale);
      name.resize(end - begin, '-');
      name.back() = ' ';
      row.replace(begin, name.size(), name);
    }
    std::string label = "rank " + std::to_string(rank);
    label.resize(title, ' ');
    text += label + row + "\n";
  }
  return text;
}

}  // namespace llm
