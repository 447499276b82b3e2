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

/// The flat layout of a model's parameters: reversed canonical order, which is the order in which
/// backward completes them. A tied embedding is complete with the embedding's backward.
FlatLayout model_layout(const ModelConfig& config, std::int64_t bucket_bytes);

/// Weights, gradients and moments of one rank as flat f32 buffers of one layout, and where the
/// compute dtype is another, a copy of the weights in it: matrices and embeddings are read from the
/// copy, rounded once a step, vectors from the f32 weights. The memory passes
/// between actors by messages: weights and gradients are the stage's until grads_ready, the
/// reducer's until reduced, the optimizer's until parameters_updated.
class ModelState {
 public:
  /// `shares_gradients`: the first gradient buffer is memory that other ranks can map.
  ModelState(const ModelConfig& config, std::int64_t bucket_bytes, int n_gradient_buffers,
             bool shares_gradients = false);

  const ModelConfig& config() const { return config_; }
  const FlatLayout& layout() const { return layout_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  /// By tensor of the layout: index into specs().
  std::size_t spec_of(std::int64_t tensor) const {
    return specs_.size() - 1 - static_cast<std::size_t>(tensor);
  }

  /// Starting values, a function of the seed and the tensors' names alone.
  void initialize(std::uint64_t seed);

  /// What a layer's ops read.
  Values values(std::int64_t layer) const;
  /// Where a microbatch's backward writes: gradient buffer `buffer`. A tied embedding's two uses
  /// are one accumulator: the head's backward writes it, the embedding's, which comes last, adds to
  /// it. So a microbatch's gradient is one number before any sum over microbatches or ranks.
  Gradients gradients(std::int64_t layer, int buffer) const;
  /// Enqueues the additions of the summation tree that follow a microbatch's gradients of `layer`.
  void accumulate(Queue& queue, std::int64_t layer, const AccumulationStep& step) const;
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
  /// Of gradient buffer 0, where it is shared.
  SharedHandle gradients_handle() const { return gradients_.front().handle(); }
  MutView flat_m() const { return flat(m_); }
  MutView flat_v() const { return flat(v_); }

 private:
  MutView flat(const Storage& storage) const {
    return storage.view(Dtype::f32, {layout_.n_elements});
  }
  Range layer_range(std::int64_t layer) const;

  ModelConfig config_;
  FlatLayout layout_;
  std::vector<ParameterSpec> specs_;
  std::vector<ParameterUse> uses_;
  Storage values_;
  Storage copy_;
  Storage m_;
  Storage v_;
  std::vector<Storage> gradients_;
};

/// Bytes of the weights' copy in the compute dtype; 0 when that is f32.
std::int64_t copy_bytes(const ModelConfig& config, const FlatLayout& layout);

}  // namespace llm
