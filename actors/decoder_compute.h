#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "actors/model_state.h"
#include "actors/parameter_source.h"
#include "actors/stage_compute.h"
#include "actors/tied_gradient.h"
#include "schedules/pipeline.h"
#include "src/rt/port.h"
#include "tensor/queue.h"

namespace llm {

/// A rank's chunks of a decoder: activations between forward and backward, gradients into the
/// accumulation tree, and word to the reducers when a bucket is complete.
///
///   sends  grads_ready(step * n_buckets + bucket)   after the last microbatch of a step
///   holds  activations of at most n_activations (chunk, microbatch), and what backward_input
///          leaves for backward_weight of at most n_split_backwards
class DecoderCompute : public StageCompute {
 public:
  struct Plan {
    LayerRanges chunks;                   ///< the rank's, by chunk
    AccumulationPlan accumulation;        ///< of the rank's A microbatches
    std::int64_t largest_microbatch = 1;  ///< samples
    std::int64_t seq_len = 1;
    std::uint64_t seed = 0;
    Recompute recompute = Recompute::none;
    bool splits_backwards = false;
    int n_pending_leaves = 1;  ///< of a tied embedding's gradient, see TiedGradient
  };

  /// `parameters` says when they can be read; nullptr: always. `sums` are the tensor-parallel
  /// group's, where there are several ranks.
  DecoderCompute(Queue& queue, Plan plan, const Decoder& decoder, ModelState& state,
                 Port<Ready> grads_ready, ParameterSource* parameters = nullptr,
                 GroupSums* sums = nullptr, RowExchange* exchange = nullptr);

  void begin_step(std::int64_t step, float loss_scale) override;
  Task<MutView> forward(At at, const Microbatch& microbatch, View input) override;
  Task<> backward(At at, const Microbatch& microbatch, MutView grad, LossSum& loss) override;
  Task<> backward_input(At at, const Microbatch& microbatch, MutView grad, LossSum& loss) override;
  Task<> backward_weight(At at) override;
  void release(const At& at) override;
  void embedding_backward(const At& at, const Microbatch& microbatch, View grad) override;
  Task<> validate(std::int64_t step, int chunk, const Microbatch& microbatch, MutView x,
                  LossSum& loss) override;

 private:
  /// What a block left for its weights' gradients.
  struct Half {
    BlockSaved saved;
    BlockDeltas deltas;
  };
  /// A microbatch of a chunk between its forward and the end of its backward.
  struct InFlight {
    std::int64_t batch = 1;
    std::int64_t first_sample = 0;
    Arena arena;                     // what is kept for the backward
    std::vector<BlockSaved> blocks;  // by block of the chunk; only x under recompute
    MutView output;
    std::optional<Arena> deltas;  // between the halves
    std::vector<Half> halves;     // last block first
  };

  Pass pass(std::int64_t batch, std::int64_t first_sample, std::int64_t step, bool training);
  void set_losses(Pass& p, const Microbatch& microbatch, LossSum& loss) const;
  Range blocks_of(int chunk) const;
  bool has(int chunk, std::int64_t layer) const;
  Write write(int m) const;
  Gradients gradients(std::int64_t layer, int m) const;
  /// What the block's backward reads, computed again into `recomputed` where it was not kept.
  BlockSaved saved_for(const Pass& p, const At& at, std::int64_t layer, Arena& recomputed);
  void head_backward(const Pass& p, const At& at, const Microbatch& microbatch, MutView grad,
                     LossSum& loss);
  void embed_backward(const Pass& p, const At& at, const Microbatch& microbatch, MutView grad);
  Task<> acquire(std::int64_t step, std::int64_t layer);
  void give_back(std::int64_t layer);
  Task<> acquire_head(At at);
  void accumulate(std::int64_t layer, int m, GradientPart part);
  void complete(std::int64_t layer, int m, GradientPart part = GradientPart::all);
  /// Adds up what ranks with the same key heads have of a block's gradient.
  void add_shared_heads(std::int64_t layer);
  /// Adds up a layer's norms, of which each rank has the gradient over its rows.
  void add_norms(std::int64_t layer, GradientPart part);
  static Arena take(std::vector<Arena>& free, std::int64_t n_bytes);
  const Values& values(std::int64_t layer) const { return values_.at(layer); }
  InFlight& in_flight(const At& at) { return in_flight_.at({at.chunk, at.m}); }
  int n_microbatches() const { return static_cast<int>(plan_.accumulation.steps.size()); }

  Queue& queue_;
  const Plan plan_;
  const Decoder& decoder_;
  ModelState& state_;
  const Port<Ready> grads_ready_;
  ParameterSource* const parameters_;
  GroupSums* const sums_;
  RowExchange* const exchange_;
  std::optional<TiedGradient> tied_;       // where this rank owns a tied embedding
  std::map<std::int64_t, Values> values_;  // by layer
  std::int64_t step_ = 0;
  float loss_scale_ = 1;
  Arena scratch_;
  Arena recomputed_;  // one block's
  std::int64_t saved_bytes_ = 0;
  std::int64_t delta_bytes_ = 0;
  std::vector<Arena> free_arenas_;
  std::vector<Arena> free_deltas_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by chunk and microbatch
  std::vector<std::vector<std::int64_t>> waits_for_;   // by bucket: tensors, this step
};

/// The layers whose parameters an action of a chunk reads, in its order, and its validation.
std::vector<std::int64_t> layers_read(const ModelConfig& config, Range layers, Action::Kind kind);
std::vector<std::int64_t> layers_validated(const ModelConfig& config, Range layers);

/// Bytes of one microbatch's arenas in a rank with these chunks, and of its other buffers: for the
/// constructor and --plan alike.
struct ComputeBytes {
  std::int64_t saved = 0;       ///< of the largest chunk, between forward and backward
  std::int64_t deltas = 0;      ///< of the largest chunk, between the halves of a backward
  std::int64_t recomputed = 0;  ///< of one block
  std::int64_t scratch = 0;
};
ComputeBytes compute_bytes(const ModelConfig& config, const DecoderCompute::Plan& plan);

}  // namespace llm
