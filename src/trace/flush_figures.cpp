#include "src/trace/flush_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "schedules/simulation.h"

namespace llm {
namespace {

using Actions = std::vector<const TimelineSlice*>;

Actions actions_of(const Activity& activity, Span step) {
  Actions actions;
  for (const TimelineSlice* action : activity.actions()) {
    if (step.begin_ns <= action->begin_ns && action->begin_ns < step.end_ns) {
      actions.push_back(action);
    }
  }
  return actions;
}

std::int64_t length_of(const Actions& actions) {
  std::int64_t sum = 0;
  std::int64_t end_ns = INT64_MIN;
  for (const TimelineSlice* action : actions) {
    sum += std::max<std::int64_t>(0, action->end_ns - std::max(end_ns, action->begin_ns));
    end_ns = std::max(end_ns, action->end_ns);
  }
  return sum;
}

/// Sum and number of what an action of a stage took.
struct Mean {
  double sum = 0;
  int n = 0;
  double value() const { return n == 0 ? 0 : sum / n; }
};
constexpr std::array kinds = {Action::Kind::forward, Action::Kind::backward,
                              Action::Kind::backward_input, Action::Kind::backward_weight};
constexpr std::array names = {"F", "B", "I", "W"};

/// How the time of a pair is shared out to its two actions, which a trace has as one.
constexpr ActionCosts pair_costs;

std::size_t index_of(Action::Kind kind) {
  return static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
}

/// By stage and kind, from what each action of the schedule took: a trace says of an action its
/// kind and microbatch (of a pair the backward's), and the schedule in what order its chunks come.
/// Empty where they differ.
using StageMeans = std::vector<std::array<Mean, kinds.size()>>;
std::optional<StageMeans> means_of(const Timeline& timeline, const std::vector<Actions>& actions) {
  const Pipeline& pipeline = timeline.pipeline;
  StageMeans means(static_cast<std::size_t>(pipeline.n_stages()));
  const auto add = [&](int rank, const Action& action, double ns) {
    const int stage = pipeline.stage_of({rank, action.chunk});
    Mean& mean = means[static_cast<std::size_t>(stage)][index_of(action.kind)];
    mean.sum += ns;
    ++mean.n;
  };
  for (int rank = 0; rank < pipeline.n_ranks; ++rank) {
    const Schedule& schedule = pipeline.schedules[static_cast<std::size_t>(rank)];
    Actions left = actions[static_cast<std::size_t>(rank)];
    for (int flush = 0; flush < timeline.n_flushes; ++flush) {
      for (std::size_t i = 0; i < schedule.size(); ++i) {
        const Action& first = schedule[i];
        const Action& last = first.beside_next ? schedule[++i] : first;
        const int m = flush * pipeline.n_microbatches + last.microbatch;
        const std::string name =
            std::string(first.beside_next ? "F|" : "") + names[index_of(last.kind)];
        const auto found = std::find_if(left.begin(), left.end(), [&](const TimelineSlice* slice) {
          return slice->key == m && timeline.name(slice->name) == name;
        });
        if (found == left.end()) return {};
        const auto ns = static_cast<double>((*found)->end_ns - (*found)->begin_ns);
        left.erase(found);
        if (first.beside_next) {
          const double forward_ns =
              ns * pair_costs.forward / (pair_costs.forward + pair_costs.of(last.kind));
          add(rank, first, forward_ns);
          add(rank, last, ns - forward_ns);
        } else {
          add(rank, last, ns);
        }
      }
    }
    if (!left.empty()) return {};
  }
  return means;
}

void plan(const Timeline& timeline, const std::vector<Actions>& actions, FlushFigures& figures) {
  if (timeline.pipeline.schedules.size() != actions.size()) return;
  const std::optional<StageMeans> means = means_of(timeline, actions);
  if (!means) return;
  PipelineCosts costs;
  for (const auto& stage : *means) {
    costs.by_stage.push_back({.forward = stage[0].value(),
                              .backward = stage[1].value(),
                              .backward_input = stage[2].value(),
                              .backward_weight = stage[3].value()});
  }
  const Simulation simulation = simulate(timeline.pipeline, costs);
  if (!simulation.finished()) return;
  const auto flush_ns = static_cast<std::int64_t>(std::llround(simulation.makespan));
  figures.planned_bubble = simulation.bubble();
  figures.planned_ns = flush_ns * timeline.n_flushes;
  for (int flush = 0; flush < timeline.n_flushes; ++flush) {
    const std::int64_t begin_ns = figures.begin_ns + flush * flush_ns;
    for (std::size_t place = 0; place < simulation.actions.size(); ++place) {
      for (const TimedAction& timed : simulation.actions[place]) {
        Action shown = timed.action;
        shown.microbatch += flush * timeline.pipeline.n_microbatches;
        figures.planned.push_back({.rank = figures.ranks[place],
                                   .name = to_string(shown),
                                   .begin_ns = begin_ns + std::llround(timed.begin),
                                   .end_ns = begin_ns + std::llround(timed.end)});
      }
    }
  }
}

}  // namespace

std::vector<FlushFigures> flush_figures(const Timeline& timeline,
                                        const std::vector<Activity>& activities,
                                        const std::vector<Span>& steps) {
  std::vector<FlushFigures> all;
  const Grid& grid = timeline.grid;
  if (grid.pp == 1 || grid.n_ranks() != static_cast<int>(activities.size())) return all;
  for (int rank = 0; rank < grid.n_ranks(); ++rank) {
    if (place_of(grid, rank).pp != 0) continue;
    FlushFigures figures;
    figures.ranks = pipeline_group(grid, rank);
    figures.begin_ns = INT64_MAX;
    figures.end_ns = INT64_MIN;
    std::vector<Actions> actions;
    std::int64_t busy_ns = 0;
    for (const int member : figures.ranks) {
      const auto at = static_cast<std::size_t>(member);
      actions.push_back(actions_of(activities[at], steps[at]));
      for (const TimelineSlice* action : actions.back()) {
        figures.begin_ns = std::min(figures.begin_ns, action->begin_ns);
        figures.end_ns = std::max(figures.end_ns, action->end_ns);
      }
      busy_ns += length_of(actions.back());
    }
    if (figures.begin_ns >= figures.end_ns) continue;
    figures.bubble = 1 - static_cast<double>(busy_ns) /
                             static_cast<double>(figures.end_ns - figures.begin_ns) /
                             static_cast<double>(figures.ranks.size());
    plan(timeline, actions, figures);
    all.push_back(std::move(figures));
  }
  return all;
}

}  // namespace llm
