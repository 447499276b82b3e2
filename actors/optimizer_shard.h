#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages.h"
#include "actors/model_state.h"
#include "actors/square_sums.h"
#include "schedules/learning_rate.h"
#include "schedules/loss_scale.h"
#include "schedules/saves.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"
#include "tensor/ops/adamw.h"

namespace llm {

/// Hyperparameters of AdamW and clipping.
struct OptimizerConfig {
  LrSchedule lr;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool decay_embeddings = false;  ///< matrices always decay, vectors never
  double clip_norm = 1.0;         ///< 0: no clipping
  /// Set under f16: the loss scale moves, and an overflow at its minimum ends the run.
  std::optional<LossScaleConfig> loss_scale = {};
};

/// What turns a step's summed gradient into its update; a pure function of what all ranks know.
///   sum_of_squares  of the summed gradient as backward left it, each token's loss times
///                   loss_scale * 2^-exponent n_valid         valid tokens of the global batch
struct StepScale {
  double grad_norm = 0;   ///< of the mean gradient, before clipping
  double grad_scale = 0;  ///< times the summed gradient is the clipped mean gradient
  bool skip = false;      ///< no valid token, or a norm that is not finite
};
StepScale step_scale(double sum_of_squares, std::int64_t n_valid, int exponent, double clip_norm,
                     double loss_scale = 1);

/// Updates what the rank owns of weights and moments from reduced gradients: one global norm, one
/// clip, one AdamW step.
///
///   receives  step_facts(step * n_ranks + rank)   from every rank's data feed
///             reduced(step * n_buckets + bucket)  from the reducers
///   sends     updated(step * n_buckets + bucket)  to whoever gathers parameters, in the order of
///             the next forward
///             parameters_updated(step + 1)        to the stage and the data feed
///             step_report(step)                   to metrics
///             step_end(n)                         to the writer of checkpoints, the n-th end that
///             it cares for, and waits for
///   receives  state_copied(n)                     from it
class OptimizerShard {
 public:
  struct Plan {
    OptimizerConfig config;
    int n_ranks = 1;  ///< of the run
    int loss_scale_exponent = 0;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
    std::int64_t n_updates = 0;                ///< AdamW's t so far
    std::optional<LossScale> loss_scale = {};  ///< where a checkpoint says it
    SavePlan saves = {};
  };
  struct Outbox {
    Port<ParametersUpdated> parameters_updated;
    Port<StepReport> step_report;
    Port<ParametersUpdated> updated =
        Port<ParametersUpdated>([](std::int64_t, ParametersUpdated) {});
    Port<StepEnd> step_end = {};  ///< where checkpoints are saved
  };

  /// `reductions` runs the sums of squares while the backward goes on; `updates`, a queue where the
  /// state's masters are, the updates.
  OptimizerShard(Loop& loop, Queue& reductions, Queue& updates, Plan plan, ModelState& state,
                 SquareSums& squares, Outbox out);

  Inbox<StepFacts>& step_facts() { return step_facts_; }
  Inbox<Ready>& reduced() { return reduced_; }
  Inbox<Ready>& state_copied() { return state_copied_; }
  Task<> run();

 private:
  /// Lets the writer of checkpoints copy what it saves.
  Task<> end_step(std::int64_t step, bool stop);
  /// Moves the loss scale after a step; throws Error where it has nowhere to go.
  void move_loss_scale(std::int64_t step, bool overflowed);
  AdamwStep step_of(const StepScale& scale, double lr);
  void enqueue_update(const AdamwStep& step, std::size_t bucket);
  double decay_of(std::int64_t tensor) const;

  Loop& loop_;
  Queue& reductions_;
  Queue& updates_;
  const Plan plan_;
  ModelState& state_;
  SquareSums& squares_;
  const Outbox out_;
  Inbox<StepFacts> step_facts_;
  Inbox<Ready> reduced_;
  Inbox<Ready> state_copied_;
  std::int64_t n_ends_ = 0;
  std::int64_t n_updates_;
  LossScale loss_scale_;
};

}  // namespace llm
