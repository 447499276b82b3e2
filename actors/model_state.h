#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/compute_layout.h"
#include "actors/unit_memory.h"
#include "schedules/accumulation.h"
#include "schedules/buckets.h"
#include "schedules/shards.h"
#include "schedules/units.h"
#include "src/model/parameters.h"
#include "src/model/tensor_slice.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// How a rank sums its microbatches' gradients (numerics.accumulation).
enum class Accumulation : std::uint8_t { tree, sequential };

/// What a microbatch's backward does with gradients.
struct AccumulationPlan {
  Accumulation kind;
  std::vector<AccumulationStep> steps;  ///< by microbatch of the rank
  int n_buffers() const { return n_accumulation_buffers(steps); }
};
AccumulationPlan accumulation_plan(Accumulation kind, int n_microbatches);

/// The flat layout of the parameters that a rank with these layers owns: reversed canonical order,
/// which is the order in which backward completes them. A tied embedding is complete with the
/// embedding's backward.
/// `units` are those of the rank's layers, or none.
FlatLayout model_layout(const ModelConfig& config, const LayerRanges& ranges,
                        std::int64_t bucket_bytes, const std::vector<Unit>& units = {});
/// That of a rank with all layers.
FlatLayout model_layout(const ModelConfig& config, std::int64_t bucket_bytes);

/// The gradients of a layer that one part of its backward writes: first the mlp's with its norm and
/// then attention's with its norm, or in a backward of two halves all norms' and then all
/// matrices'.
enum class GradientPart : std::uint8_t { all, mlp, attention, norms, matrices };

/// What a rank holds of a model, and how it is cut.
struct StateShape {
  LayerRanges ranges;
  std::int64_t bucket_bytes = 4 << 20;
  int n_gradient_buffers = 1;
  bool shares_gradients = false;  ///< gradient buffer 0 is memory that other ranks can map
  /// The data-parallel group's ranks own a piece of each bucket each (ZeRO): this is piece `piece`.
  /// One piece is everything.
  int n_pieces = 1;
  int piece = 0;
  /// Where parameters too are there in pieces, and whole only by unit for a while (ZeRO 3): of the
  /// rank's layers.
  std::vector<Unit> units = {};
  BorrowedTable table = {};  ///< with units, where the rank borrows a tied embedding
  Device device = Device::cpu;
  /// With units, on a device: what is owned lies on the host, pinned, and is updated there.
  bool is_offloaded = false;
  UnitShape unit_shape() const {
    return {static_cast<int>(units.size()), n_pieces, piece, table, device, is_offloaded};
  }
};

/// Where weights start.
using InitialValues = WholeValues;

/// Weights, gradients and moments of one rank. Gradients are flat f32 buffers of one layout.
/// What ops read (`compute` bytes) is laid out in the same order: matrices and embeddings in the
/// compute dtype, vectors in f32. Of what the rank owns it has the moments and, where the compute
/// dtype is not f32, the f32 weights (masters), from which the others are rounded once a step;
/// under f32 the masters are the owned part of what ops read. The memory passes between actors by
/// messages: weights and gradients are the stage's until grads_ready, the reducer's until reduced,
/// the optimizer's until parameters_updated.
/// A pipeline's first stage reads a tied embedding that the last stage owns: a copy of it is here,
/// outside of the layout.
/// With units (ZeRO 3) what ops read is there only while its unit has a place.
class ModelState {
 public:
  ModelState(const ModelConfig& config, const StateShape& shape);
  /// Of all layers, in one piece.
  ModelState(const ModelConfig& config, std::int64_t bucket_bytes, int n_gradient_buffers,
             bool shares_gradients = false);

  ModelState(const ModelState&) = delete;  // units refer to its layout
  ModelState& operator=(const ModelState&) = delete;

  const ModelConfig& config() const { return config_; }
  Device device() const { return device_; }  ///< where ops read, and gradients are
  /// Where masters and moments are, and what units are gathered from.
  Device owned_device() const { return m_.device(); }
  const FlatLayout& layout() const { return layout_; }
  /// Of the parameters that the rank's layers have, in canonical order.
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  /// By spec: its index in parameters(config).
  const std::vector<std::size_t>& canonical() const { return canonical_; }
  /// By tensor of the layout: index into specs().
  std::size_t spec_of(std::int64_t tensor) const {
    return specs_.size() - 1 - static_cast<std::size_t>(tensor);
  }
  const Shard& shard() const { return shard_; }
  const ComputeLayout& compute_layout() const { return compute_layout_; }

  /// Starting values, a function of the seed and the tensors' names alone.
  void initialize(std::uint64_t seed);
  /// Starting values of another source, which is asked for what this rank holds alone.
  void initialize(const InitialValues& whole);
  /// Moments of another source, likewise; until then they are 0.
  void set_moments(const WholeValues& m, const WholeValues& v) const;

  /// Of a state with units; nullptr without.
  UnitMemory* units() { return units_ ? &*units_ : nullptr; }

  /// What a layer's ops read; empty views of what has no place now.
  Values values(std::int64_t layer) const;
  /// Where a microbatch's backward writes: gradient buffer `buffer`. A tied embedding's two uses
  /// have views of one place, which TiedGradient replaces where microbatches overlap.
  Gradients gradients(std::int64_t layer, int buffer) const;
  /// Enqueues the additions of the summation tree that follow a microbatch's gradients of `layer`,
  /// but for a tied embedding's, which are TiedGradient's.
  void accumulate(Queue& queue, std::int64_t layer, const AccumulationStep& step,
                  GradientPart part = GradientPart::all) const;
  /// Whether `part` of a layer's backward completes the gradient of `tensor`.
  bool completes(std::int64_t tensor, std::int64_t layer, GradientPart part) const;
  /// The layout's tensor that is a tied embedding; -1 where there is none.
  std::int64_t tied_tensor() const { return tied_tensor_; }
  /// The buckets that hold what the layer's ops read.
  std::vector<std::size_t> buckets_of(std::int64_t layer) const;
  /// The copy of a tied embedding that the head's rank owns, (V, C) in the compute dtype; empty
  /// where there is none.
  MutView borrowed_embedding() const;
  /// With units: what a tied embedding's holders share out of it, as the owner has it and as the
  /// other holder does: equal parts in the same order.
  std::vector<MutView> owned_table() const;
  /// What the head's rank sends for it: its own in the compute dtype.
  MutView tied_embedding() const;
  /// The f32 weights of a parameter. Under another compute dtype only where the rank owns all.
  View parameter(std::size_t spec) const;
  /// The f32 weights, moments and summed gradient of an owned piece, and where its rounded weights
  /// go: empty under f32.
  MutView master(const OwnedPiece& piece) const;
  MutView m(const OwnedPiece& piece) const { return of_shard(m_, piece); }
  MutView v(const OwnedPiece& piece) const { return of_shard(v_, piece); }
  MutView gradient(const OwnedPiece& piece) const;
  /// Where the update reads it: of an offloaded state a copy, which fetch_gradients makes.
  View update_gradient(const OwnedPiece& piece) const;
  void fetch_gradients(Queue& queue, std::size_t bucket) const;
  MutView rounded(const OwnedPiece& piece) const;
  /// What ops read of elements `flat` of the layout, as bytes (u8): for a gather.
  MutView compute_bytes(Range flat) const;

  MutView flat_gradients(int buffer) const {
    const Storage& gradients = gradients_[static_cast<std::size_t>(buffer)];
    return gradients.view(Dtype::f32, {layout_.n_elements});
  }
  /// Gives back the memory of a bucket's gradients but for the owned piece of the sum (ZeRO 2).
  /// They are written from scratch by the next step.
  void discard_gradients(std::size_t bucket) const;
  int n_gradient_buffers() const { return static_cast<int>(gradients_.size()); }
  /// Of gradient buffer 0, where it is shared.
  SharedHandle gradients_handle() const { return gradients_.front().handle(); }
  MutView flat_m() const { return m_.view(Dtype::f32, {shard_.n_elements}); }
  MutView flat_v() const { return v_.view(Dtype::f32, {shard_.n_elements}); }

 private:
  MutView of_shard(const Storage& storage, const OwnedPiece& piece) const {
    return storage.view(Dtype::f32, {piece.elements.size()}, piece.shard_begin * 4);
  }
  /// Elements of a tensor as ops read them, seen under a shape.
  MutView compute_view(std::int64_t tensor, std::int64_t first_element, Shape shape) const;
  MutView compute_value(std::size_t spec) const;
  MutView owned_view(const OwnedPiece& piece) const;
  void draw(std::int64_t tensor, Range elements, const InitialValues& source) const;
  void draw_owned(const OwnedPiece& piece, const InitialValues& source) const;

  ModelConfig config_;
  Device device_;
  FlatLayout layout_;
  Shard shard_;
  std::vector<std::size_t> canonical_;
  std::vector<ParameterSpec> specs_;
  std::int64_t tied_tensor_;
  std::size_t n_parameters_;  // of the whole model
  std::vector<ParameterUse> uses_;
  ComputeLayout compute_layout_;
  std::optional<UnitMemory> units_;
  Storage compute_;  // without units
  Storage masters_;  // of the shard; empty under f32
  Storage borrowed_;
  Storage m_;
  Storage v_;
  Storage host_gradients_;  // of the shard, where it is offloaded
  std::vector<Storage> gradients_;
};

/// Bytes of the copy of a tied embedding that the head's rank owns; 0 where there is none.
std::int64_t borrowed_bytes(const ModelConfig& config, const LayerRanges& ranges);

}  // namespace llm
