#pragma once
#include <cstdint>
#include <vector>

#include "schedules/accumulation.h"
#include "schedules/buckets.h"
#include "src/model/parameters.h"
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
FlatLayout model_layout(const ModelConfig& config, const LayerRanges& ranges,
                        std::int64_t bucket_bytes);
/// That of a rank with all layers.
FlatLayout model_layout(const ModelConfig& config, std::int64_t bucket_bytes);

/// The gradients of a layer that one part of its backward writes: first the mlp's with its norm and
/// then attention's with its norm, or in a backward of two halves all norms' and then all
/// matrices'.
enum class GradientPart : std::uint8_t { all, mlp, attention, norms, matrices };

/// Weights, gradients and moments of one rank as flat f32 buffers of one layout, and where the
/// compute dtype is another, a copy of the weights in it: matrices and embeddings are read from the
/// copy, rounded once a step, vectors from the f32 weights. The memory passes
/// between actors by messages: weights and gradients are the stage's until grads_ready, the
/// reducer's until reduced, the optimizer's until parameters_updated.
/// A pipeline's first stage reads a tied embedding that the last stage owns: a copy of it is here,
/// outside of the layout.
class ModelState {
 public:
  /// `shares_gradients`: the first gradient buffer is memory that other ranks can map.
  ModelState(const ModelConfig& config, const LayerRanges& ranges, std::int64_t bucket_bytes,
             int n_gradient_buffers, bool shares_gradients = false);
  /// Of all layers.
  ModelState(const ModelConfig& config, std::int64_t bucket_bytes, int n_gradient_buffers,
             bool shares_gradients = false);

  const ModelConfig& config() const { return config_; }
  const FlatLayout& layout() const { return layout_; }
  /// Of the parameters that the rank owns, in canonical order.
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  /// By spec: its index in parameters(config).
  const std::vector<std::size_t>& canonical() const { return canonical_; }
  /// By tensor of the layout: index into specs().
  std::size_t spec_of(std::int64_t tensor) const {
    return specs_.size() - 1 - static_cast<std::size_t>(tensor);
  }

  /// Starting values, a function of the seed and the tensors' names alone.
  void initialize(std::uint64_t seed);

  /// What a layer's ops read.
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
  std::int64_t tied_tensor() const;
  /// The copy of a tied embedding that the head's rank owns, (V, C) in the compute dtype; empty
  /// where there is none.
  MutView borrowed_embedding() const;
  /// What the head's rank sends for it: its own in the compute dtype.
  View tied_embedding() const;
  /// The f32 weights of a parameter.
  View parameter(std::size_t spec) const;
  MutView flat_values() const { return flat(values_); }
  /// The weights in the compute dtype; empty when that is f32.
  MutView flat_copy() const {
    return copy_.n_bytes() == 0 ? MutView() : copy_.view(config_.compute, {layout_.n_elements});
  }
  MutView flat_gradients(int buffer) const {
    return flat(gradients_[static_cast<std::size_t>(buffer)]);
  }
  int n_gradient_buffers() const { return static_cast<int>(gradients_.size()); }
  /// Of gradient buffer 0, where it is shared.
  SharedHandle gradients_handle() const { return gradients_.front().handle(); }
  MutView flat_m() const { return flat(m_); }
  MutView flat_v() const { return flat(v_); }

 private:
  MutView flat(const Storage& storage) const {
    return storage.view(Dtype::f32, {layout_.n_elements});
  }
  View compute_value(std::size_t spec) const;

  ModelConfig config_;
  FlatLayout layout_;
  std::vector<std::size_t> canonical_;
  std::vector<ParameterSpec> specs_;
  std::size_t n_parameters_;  // of the whole model
  std::vector<ParameterUse> uses_;
  Storage values_;
  Storage borrowed_;
  Storage copy_;
  Storage m_;
  Storage v_;
  std::vector<Storage> gradients_;
};

/// Bytes of the copy of a tied embedding that the head's rank owns; 0 where there is none.
std::int64_t borrowed_bytes(const ModelConfig& config, const LayerRanges& ranges);

/// Bytes of the weights' copy in the compute dtype; 0 when that is f32.
std::int64_t copy_bytes(const ModelConfig& config, const FlatLayout& layout);

}  // namespace llm
