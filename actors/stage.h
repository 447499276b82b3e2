#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/boundary.h"
#include "actors/messages.h"
#include "actors/stage_compute.h"
#include "schedules/pipeline.h"
#include "schedules/validation.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"
#include "tensor/queue.h"

namespace llm {

/// Runs a rank's model chunks: forward and backward of its microbatches in the order its schedule
/// gives, and the validation loss between steps. The schedule orders compute; messages decide when.
///
///   receives  microbatch(step * A + m)     from the data feed
///             validation(round * n + i)    from the validation feed, as wanted
///             parameters_updated(step)     from the optimizer: the weights of `step` are in place
///             activations and gradients    from the ranks of the neighbouring stages
///   sends     activations and gradients    to them
///             validation_wanted(round * n + i)  to the validation feed
///             router_losses(step)          to metrics, of the rank's blocks where they are
///             mixtures loss(step * N + global m)    to metrics, validation_loss(round * N' +
///             global i): where the last stage is
///   holds     the leases of what its chunks read; activations are the compute's
class Stage {
 public:
  struct Plan {
    Pipeline pipeline;
    int rank = 0;                   ///< in the pipeline
    std::vector<int> ranks = {0};   ///< the transport's rank of each rank of the pipeline
    int first_tag = 0;              ///< two for each stage, and two more
    int n_gradient_buffers = 1;     ///< of each boundary
    int n_embedding_gradients = 1;  ///< of a tied embedding, at a time
    bool has_routers = false;       ///< blocks are mixtures of experts
    bool tied = false;              ///< the first stage embeds with the last one's table
    std::vector<std::int64_t> microbatch_samples = {1};  ///< of one flush
    int n_accumulation_steps = 1;                        ///< flushes a step
    int first_microbatch = 0;       ///< global index of this rank's microbatch 0 in a step
    int n_global_microbatches = 1;  ///< N
    std::int64_t seq_len = 1;
    std::int64_t width = 1;               ///< C
    ModelConfig::TensorParallel tp = {};  ///< says which rows of activations the rank has
    Dtype dtype = Dtype::f32;
    Device device = Device::cpu;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;       ///< the step after the last
    ValidationPlan validation;      ///< N' is its n_microbatches()
    Range validation_microbatches;  ///< this rank's, of N'
    /// Where other ranks of the data-parallel group have more and need this one's experts for them:
    /// so many that it computes for nobody.
    std::int64_t n_spare_validations = 0;
    std::int64_t n_validations() const {
      return validation_microbatches.size() + n_spare_validations;
    }
    int n_validation_buffers = 2;  ///< of the validation feed
    float loss_scale = 1;          ///< what backward starts from for each token: 2^-k

    int n_microbatches() const {  ///< A
      return static_cast<int>(microbatch_samples.size()) * n_accumulation_steps;
    }
  };
  struct Outbox {
    Port<LossReport> loss;
    Port<LossReport> validation_loss;
    Port<Ready> validation_wanted;
    Port<RouterLosses> router_losses = {};  ///< where the plan has routers
  };

  Stage(Transport& transport, Queue& queue, Plan plan, StageCompute& compute, Outbox out);

  Inbox<Microbatch>& microbatches() { return microbatches_; }
  Inbox<Microbatch>& validation() { return validation_; }
  Inbox<ParametersUpdated>& parameters_updated() { return parameters_updated_; }
  /// The stage itself, and the senders and receivers that serve it.
  void spawn();

 private:
  /// One chunk's place in the model, and its ends of the boundaries to other ranks. What comes from
  /// a stage on this rank is put into the same inboxes.
  struct Chunk {
    explicit Chunk(Loop& loop, int stage_);
    int stage;
    std::unique_ptr<TensorReceiver> activation_receiver;
    std::unique_ptr<TensorReceiver> gradient_receiver;
    std::unique_ptr<TensorSender> activation_sender;
    std::unique_ptr<TensorSender> gradient_sender;
    Inbox<Leased> activations;             // step * A + m
    Inbox<Leased> gradients;               // step * A + m
    Inbox<Leased> validation_activations;  // round * n + i
  };
  using At = StageCompute::At;

  void make_boundaries(int chunk);
  void make_embedding_boundary();
  Task<> run();
  Task<> run_step(std::int64_t step);
  Task<> forward(At at);
  Task<> backward(At at, Action::Kind kind);
  /// The two of a pair.
  Task<> beside(At forward, At backward, Action::Kind kind);
  Task<> finish(At at);
  /// What an action waits for before it can be computed.
  Task<View> input_for(At at);
  Task<Leased> activation_for(At at);
  Task<Leased> gradient_for(At at, Action::Kind kind);
  /// What follows once an action is computed.
  void pass_output_on(At at, MutView output);
  Task<> end_backward(At at, Action::Kind kind, Leased gradient, LossSum loss);
  Task<Leased> validation_for(int chunk, std::int64_t key, std::int64_t n_rows);
  void pass_gradient_on(At at, Leased gradient);
  /// The gradient that the first stage has sent joins a tied embedding's here and not when it
  /// arrives, so that what the ranks of a tensor-parallel group do for it has one place in the
  /// order of all that they do together.
  Task<> embedding_added(std::int64_t k);
  Task<> validate(std::int64_t step, std::int64_t round);
  Task<> validate_one(std::int64_t step, std::int64_t round, int chunk, std::int64_t i);
  /// Returns when the work that was enqueued since begin_ns is done; waits for parameters count.
  Task<> computed(const char* name, std::int64_t key, std::int64_t begin_ns);
  void trace_compute(const std::string& name, std::int64_t key, std::int64_t begin_ns) const;
  void expect(std::int64_t step);
  void expect_validation(std::int64_t step, std::int64_t round);

  bool is_here(int stage) const { return plan_.pipeline.place_of(stage).rank == plan_.rank; }
  Chunk& chunk_of_stage(int stage) {
    return chunks_[static_cast<std::size_t>(plan_.pipeline.place_of(stage).chunk)];
  }
  Chunk& chunk(int index) { return chunks_[static_cast<std::size_t>(index)]; }
  bool is_last(int stage) const { return stage + 1 == plan_.pipeline.n_stages(); }
  std::int64_t key(const At& at) const { return at.step * plan_.n_microbatches() + at.m; }
  std::int64_t flight_key(const At& at) const {
    return key(at) * plan_.pipeline.n_chunks + at.chunk;
  }

  Transport& transport_;
  Loop& loop_;
  Queue& queue_;
  const Plan plan_;
  StageCompute& compute_;
  const Outbox out_;
  const std::vector<std::int64_t> microbatch_rows_;  // by microbatch of a step
  const std::vector<std::int64_t> validation_rows_;
  Inbox<Microbatch> microbatches_;
  Inbox<Microbatch> validation_;
  Inbox<ParametersUpdated> parameters_updated_;
  std::deque<Chunk> chunks_;
  BufferRing own_ring_;           // gradients of the last stage's input, x of validation
  Inbox<Ready> activation_sent_;  // flight_key
  RouterLosses router_losses_;    // of this step
  Inbox<Ready> embedding_added_;  // step * A + m: a tied embedding's gradient of m is whole
  std::unique_ptr<TensorSender> embedding_sender_;      // on the first stage's rank
  std::unique_ptr<TensorReceiver> embedding_receiver_;  // on the last stage's
  Inbox<Leased> embedding_gradients_;
  std::int64_t n_expected_ = 0;
  std::map<int, Microbatch> held_;  // of this step
  std::map<std::int64_t, Microbatch> held_validation_;
  std::map<std::int64_t, Lease> inputs_;  // by flight_key
};

/// Bytes of the buffers that a stage and its receivers hold: for --plan.
std::int64_t stage_buffer_bytes(const Stage::Plan& plan);

}  // namespace llm
