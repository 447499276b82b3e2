#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "actors/messages.h"
#include "actors/model_state.h"
#include "schedules/pipeline.h"
#include "schedules/validation.h"
#include "src/model/decoder.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"

namespace llm {

/// Computes the model's forward and backward for its rank's microbatches, in the order its schedule
/// gives, and the validation loss between steps.
///
///   receives  microbatch(step * A + m)     from the data feed
///             validation(round * n + i)    from the validation feed, as wanted
///             parameters_updated(step)     from the optimizer: the weights of `step` are in place
///   sends     validation_wanted(round * n + i)  to the validation feed, one ahead
///             loss(step * N + global m)    to metrics, validation_loss(round * N' + global i)
///             likewise grads_ready(step * n_buckets + bucket)  to the reducer, after the last
///             microbatch of a step
///   holds     activations of at most peak_activations(schedule) microbatches
class Stage {
 public:
  struct Plan {
    Schedule schedule;                    ///< of one flush
    int n_accumulation_steps = 1;         ///< flushes a step
    AccumulationPlan accumulation;        ///< of the rank's A microbatches
    int first_microbatch = 0;             ///< global index of this rank's microbatch 0 in a step
    int n_global_microbatches = 1;        ///< N
    std::int64_t largest_microbatch = 1;  ///< samples
    std::int64_t seq_len = 1;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;       ///< the step after the last
    ValidationPlan validation;      ///< N' is its n_microbatches()
    Range validation_microbatches;  ///< this rank's, of N'
    float loss_scale = 1;           ///< what backward starts from for each token: 2^-k
    std::uint64_t seed = 0;
  };
  struct Outbox {
    Port<LossReport> loss;
    Port<LossReport> validation_loss;
    Port<Ready> validation_wanted;
    Port<Ready> grads_ready;
  };

  Stage(Loop& loop, Queue& queue, Plan plan, const Decoder& decoder, ModelState& state, Outbox out);

  Inbox<Microbatch>& microbatches() { return microbatches_; }
  Inbox<Microbatch>& validation() { return validation_; }
  Inbox<ParametersUpdated>& parameters_updated() { return parameters_updated_; }
  Task<> run();

 private:
  /// A microbatch between its forward and its backward.
  struct InFlight {
    InFlight(Microbatch m, Arena a) : microbatch(m), arena(std::move(a)) {}
    Microbatch microbatch;
    Arena arena;  // what the blocks keep for their backward
    std::vector<BlockSaved> blocks;
    View output;  // (n, C) of the last block
    LossSum loss;
  };

  Task<> run_step(std::int64_t step);
  Task<> forward(std::int64_t step, int m);
  Task<> backward(std::int64_t step, int m);
  Task<> validate(std::int64_t round);
  Pass pass(const Microbatch& microbatch, std::int64_t step, bool training);
  void enqueue_forward(std::int64_t step, InFlight& flight);
  void enqueue_backward(std::int64_t step, int m, InFlight& flight);
  void enqueue_validation(const Microbatch& microbatch, LossSum& loss);
  void finish_layer(std::int64_t step, int m, std::int64_t layer);
  Arena take_arena();
  int n_microbatches() const { return static_cast<int>(plan_.accumulation.steps.size()); }

  Loop& loop_;
  Queue& queue_;
  const Plan plan_;
  const Decoder& decoder_;
  ModelState& state_;
  const Outbox out_;
  Inbox<Microbatch> microbatches_;
  Inbox<Microbatch> validation_;
  Inbox<ParametersUpdated> parameters_updated_;
  std::vector<Values> values_;  // by layer + 1
  float loss_scale_ = 1;        // of this step: the plan's 2^-k times what the optimizer says
  Arena scratch_;
  Storage grad_;  // (n, C): the gradient on its way down, of one microbatch at a time
  std::vector<Arena> free_arenas_;
  std::map<int, InFlight> in_flight_;  // by microbatch
};

}  // namespace llm
