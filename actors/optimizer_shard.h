#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages.h"
#include "actors/model_state.h"
#include "schedules/collective.h"
#include "schedules/learning_rate.h"
#include "schedules/loss_scale.h"
#include "src/comm/transport.h"
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

/// Updates weights and moments from reduced gradients: one global norm, one clip, one AdamW step.
///
/// In a pipeline each rank has the sums of its own parameters and sends them to the others.
///
///   receives  step_facts(step * n_ranks + rank)   from every rank's data feed
///             reduced(step * n_buckets + bucket)  from the reducers
///   sends     parameters_updated(step + 1)        to the stage and the data feed
///             step_report(step)                   to metrics
///             squares                             from the optimizers of the pipeline's ranks
///   holds     one sum of squares a chunk of 4,096 elements, added in order to one a parameter;
///             these are added in canonical order
class OptimizerShard {
 public:
  struct Plan {
    OptimizerConfig config;
    int n_ranks = 1;  ///< of the run
    /// By rank of the pipeline: which parameters it owns (owned_parameters).
    std::vector<std::vector<std::size_t>> parameters_by_rank;
    int squares_tag = 0;
    int loss_scale_exponent = 0;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
  };
  struct Outbox {
    Port<ParametersUpdated> parameters_updated;
    Port<StepReport> step_report;
  };

  /// `reductions` runs the sums of squares while the backward goes on; `compute` the updates;
  /// `pipeline` are the ranks that hold the other stages.
  OptimizerShard(Group& pipeline, Queue& reductions, Queue& compute, Plan plan, ModelState& state,
                 Outbox out);

  Inbox<StepFacts>& step_facts() { return step_facts_; }
  Inbox<Ready>& reduced() { return reduced_; }
  Task<> run();

 private:
  /// Moves the loss scale after a step; throws Error where it has nowhere to go.
  void move_loss_scale(std::int64_t step, bool overflowed);
  void enqueue_squares(const Bucket& bucket);
  /// The sum over all parameters of the model, from the chunk sums of this rank's and the others'.
  Task<double> sum_over_model(std::int64_t step);
  void enqueue_update(const AdamwStep& step, const Bucket& bucket);
  double decay_of(std::int64_t tensor) const;

  Group& pipeline_;
  Loop& loop_;
  Queue& reductions_;
  Queue& compute_;
  const Plan plan_;
  ModelState& state_;
  const Outbox out_;
  Inbox<StepFacts> step_facts_;
  Inbox<Ready> reduced_;
  std::vector<std::int64_t> chunk_begin_;  // by spec: its first chunk in canonical order
  Storage chunk_sums_;                     // f64
  Storage parameter_sums_;                 // f64, by rank of the pipeline and its parameters
  std::vector<GatherRound> gather_;        // of parameter_sums_
  std::int64_t n_updates_ = 0;
  LossScale loss_scale_;
};

/// Bytes of the sums of squares of a rank's chunks and of all parameters: for --plan.
std::int64_t square_sum_bytes(const ModelConfig& config, const LayerRanges& ranges);

}  // namespace llm
