#pragma once
#include <string>
#include <vector>

#include "schedules/pipeline.h"

namespace llm {

/// What the actions of a stage cost, in any unit of time.
struct ActionCosts {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double of(Action::Kind kind) const;
};

struct PipelineCosts {
  std::vector<ActionCosts> by_stage;  ///< empty: ActionCosts{} for every stage
  double message = 0;                 ///< between two ranks
};

struct TimedAction {
  Action action;
  double begin;
  double end;
};

/// One flush on a virtual clock. A rank starts its next action as soon as the one before is done
/// and the action's message has come: a forward waits for the forward of the stage before, a
/// backward or its input half for that of the stage after. Both of a pair begin when both messages
/// have come, and end when both are done. Sending takes no time of a rank.
struct Simulation {
  std::vector<std::vector<TimedAction>> actions;  ///< by rank; what was done
  double makespan = 0;
  std::vector<double> busy;           ///< by rank: time in actions
  std::vector<int> peak_activations;  ///< by rank, see peak_activations(Schedule)
  std::string deadlock;  ///< empty: finished; otherwise each waiting rank, its action, and what for

  bool finished() const { return deadlock.empty(); }
  /// The part of the makespan in which the rank does nothing.
  double bubble(int rank) const { return 1 - busy[static_cast<std::size_t>(rank)] / makespan; }
  /// The mean over the ranks.
  double bubble() const;
};

Simulation simulate(const Pipeline& pipeline, const PipelineCosts& costs = {});

/// One row a rank, time from left to right: "F0", "B0", "I0", "W0", "F1|B0" where they begin, drawn
/// with - to their end, dots where the rank is idle; "F0.1" is chunk 1. Empty where it needs more
/// than `n_columns`.
std::string timeline(const Simulation& simulation, int n_columns);

}  // namespace llm
