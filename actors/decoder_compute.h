#pragma once
#include <array>
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
#include "tensor/alternation.h"
#include "tensor/queue.h"

namespace llm {

/// A rank's chunks of a decoder: activations between forward and backward, gradients into the
/// accumulation tree, and word to the reducers when a bucket is complete.
///
///   sends  grads_ready(step * n_buckets + bucket)   after the last microbatch of a step
///   holds  activations of at most n_activations (chunk, microbatch), and what a backward's input
///          half leaves for its weight half of at most n_split_backwards
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
    bool has_pairs = false;    ///< a forward beside a backward
    int n_pending_leaves = 1;  ///< of a tied embedding's gradient, see TiedGradient
  };

  /// `parameters` says when they can be read; nullptr: always. `sums` are the tensor-parallel
  /// group's, where there are several ranks.
  DecoderCompute(Queue& queue, Plan plan, const Decoder& decoder, ModelState& state,
                 Port<Ready> grads_ready, ParameterSource* parameters = nullptr,
                 GroupSums* sums = nullptr, RowExchange* exchange = nullptr);

  void begin_step(std::int64_t step, float loss_scale) override;
  Task<MutView> forward(const ForwardWork& work) override;
  Task<> backward(const BackwardWork& work) override;
  Task<MutView> beside(const ForwardWork& forward, const BackwardWork& backward) override;
  void release(const At& at) override;
  void embedding_backward(const At& at, const Microbatch& microbatch, View grad) override;
  Task<> validate(std::int64_t step, int chunk, const Microbatch& microbatch, MutView x,
                  LossSum& loss) override;
  /// The lanes of pairs, for traces; empty where there are no pairs.
  std::vector<Queue*> lanes();

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
  /// Memory of work that alternates with no other in it.
  struct Room {
    Arena scratch;
    Arena recomputed;  // one block's
  };
  /// Where an action's work goes.
  struct Lane {
    Queue& queue;
    Room& room;
    /// Of a pair: layers whose work is in its lane, and not yet in the compute queue.
    std::vector<std::int64_t>* held = nullptr;
  };
  /// What a pass is of.
  struct Samples {
    std::int64_t batch;
    std::int64_t first_sample;
    std::int64_t step;
    bool training;
  };

  Lane alone() { return {queue_, rooms_[0]}; }
  Pass pass(const Lane& lane, const Samples& samples);
  Pass pass_of(const Lane& lane, const At& at);
  void set_losses(Pass& p, const Microbatch& microbatch, LossSum& loss) const;
  void begin_forward(const ForwardWork& work);
  void begin_backward(const BackwardWork& work);
  /// The layers in which an action computes: those that it reads, and an embedding's backward.
  std::vector<std::int64_t> layers_of(int chunk, Action::Kind kind) const;
  Task<> forward_layer(const Lane& lane, const ForwardWork& work, std::int64_t layer);
  Task<> backward_layer(const Lane& lane, const BackwardWork& work, std::int64_t layer);
  Range blocks_of(int chunk) const;
  bool has(int chunk, std::int64_t layer) const;
  Write write(int m) const;
  Gradients gradients(std::int64_t layer, int m) const;
  /// What the block's backward reads, computed again into `recomputed` where it was not kept.
  BlockSaved saved_for(const Pass& p, const At& at, std::int64_t layer, Arena& recomputed);
  void head_backward(const Lane& lane, const Pass& p, const BackwardWork& work);
  void embed_backward(const Lane& lane, const Pass& p, const BackwardWork& work);
  void block_backward(const Lane& lane, const Pass& p, const BackwardWork& work,
                      std::int64_t layer);
  void block_backward_weight(const Lane& lane, const Pass& p, const At& at, std::int64_t layer);
  Task<> acquire(Queue& queue, std::int64_t step, std::int64_t layer);
  void give_back(const Lane& lane, std::int64_t layer);
  void release_held(std::vector<std::int64_t>& held);
  void accumulate(Queue& queue, std::int64_t layer, int m, GradientPart part);
  void complete(Queue& queue, std::int64_t layer, int m, GradientPart part = GradientPart::all);
  /// Adds up what ranks with the same key heads have of a block's gradient.
  void add_shared_heads(Queue& queue, std::int64_t layer);
  /// Adds up a layer's norms, of which each rank has the gradient over its rows.
  void add_norms(Queue& queue, std::int64_t layer, GradientPart part);
  Arena take(std::vector<Arena>& free, std::int64_t n_bytes) const;
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
  std::array<Room, 2> rooms_;  // the second one's is the backward's of a pair
  std::optional<Alternation> alternation_;
  std::int64_t saved_bytes_ = 0;
  std::int64_t delta_bytes_ = 0;
  std::vector<Arena> free_arenas_;
  std::vector<Arena> free_deltas_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by chunk and microbatch
  std::vector<std::vector<std::int64_t>> waits_for_;   // by bucket: tensors, this step
};

/// The layers whose parameters a rank reads in a row, and for each the last one that is acquired
/// before this one's work is enqueued: itself, but a later one in a pair.
struct LayerUses {
  std::vector<std::int64_t> layers;
  std::vector<int> done_with;
};
/// Adds those of a schedule's actions to `uses`.
void add_uses(const ModelConfig& config, const LayerRanges& chunks, const Schedule& schedule,
              LayerUses& uses);
/// Those of a chunk's validation.
std::vector<std::int64_t> layers_validated(const ModelConfig& config, Range layers);

/// Bytes of one microbatch's arenas in a rank with these chunks, and of its other buffers: for the
/// constructor and --plan alike.
struct ComputeBytes {
  std::int64_t saved = 0;       ///< of the largest chunk, between forward and backward
  std::int64_t deltas = 0;      ///< of the largest chunk, between the halves of a backward
  std::int64_t recomputed = 0;  ///< of one block, in each room
  std::int64_t scratch = 0;     ///< in each room
  int n_rooms = 1;              ///< 2 where there are pairs
};
ComputeBytes compute_bytes(const ModelConfig& config, const DecoderCompute::Plan& plan);

}  // namespace llm
