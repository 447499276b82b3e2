#pragma once
#include <cstdint>

#include "src/model/decoder.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/norm.h"

namespace llm {

/// The four dropouts of a decoder; the numbers are part of the random stream's definition.
enum class DropoutSite : std::int32_t {
  embedding = 0,
  attention_weights = 1,
  attention_output = 2,
  mlp_output = 3,
};

inline Dropout dropout_at(const ModelConfig& config, const Pass& pass, std::int64_t layer,
                          DropoutSite site) {
  return {.p = pass.training ? config.dropout : 0.0f,
          .seed = pass.seed,
          .step = pass.step,
          .first_sample = pass.first_sample,
          .first_row = config.tp.rows(pass.n_tokens()).begin,
          .layer = static_cast<std::int32_t>(layer),
          .site = static_cast<std::int32_t>(site)};
}

/// The rows of a matrix of all tokens that this rank has between the layers' products.
inline MutView own_rows(const ModelConfig& config, MutView all) {
  const Range rows = config.tp.rows(all.shape()[0]);
  const std::int64_t width = all.shape()[1];
  return part(all, rows.begin * width, {rows.size(), width});
}

/// This rank's rows of x (n, C) become the sum over the tensor-parallel group, of which each rank
/// has computed its part.
inline void sum_over_group(const ModelConfig& config, const Pass& pass, MutView x) {
  if (pass.sums == nullptr) return;
  if (config.tp.cuts_rows) {
    pass.sums->reduce_scatter_rows(pass.queue, x);
  } else {
    pass.sums->all_reduce(pass.queue, x);
  }
}

/// Fills x (n, C) from the rows that each rank of the group has.
inline void gather_over_group(const ModelConfig& config, const Pass& pass, MutView x) {
  if (config.tp.cuts_rows) pass.sums->gather_rows(pass.queue, x);
}

/// Gives back what was taken from an arena since its construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release_to(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  std::int64_t mark_;
};

/// One norm of the model, whichever kind it is: its parameters and where a pass keeps its
/// statistics.
struct NormPart {
  View weight;
  View bias;
  MutView mean;
  MutView rstd;
};

inline void norm_forward(const ModelConfig& config, Queue& queue, const NormPart& norm, View x,
                         MutView y) {
  if (config.norm == Norm::layer_norm) {
    layer_norm_forward(queue, x, norm.weight, norm.bias, config.norm_epsilon, y, norm.mean,
                       norm.rstd);
  } else {
    rms_norm_forward(queue, x, norm.weight, config.norm_epsilon, y, norm.rstd);
  }
}

/// norm(x) of all tokens, from this rank's rows of x.
inline void normalize(const ModelConfig& config, const Pass& pass, const NormPart& norm, View x,
                      MutView all) {
  norm_forward(config, pass.queue, norm, x, own_rows(config, all));
  gather_over_group(config, pass, all);
}

/// Where a norm's backward writes.
struct NormGradients {
  Write write_dx;
  MutView dx;
  Write write_parameters;
  MutView weight;
  MutView bias;
};

inline void norm_backward(const ModelConfig& config, Queue& queue, const NormPart& norm, View x,
                          View dy, const NormGradients& grads) {
  if (config.norm == Norm::layer_norm) {
    layer_norm_backward(queue, x, norm.weight, norm.mean, norm.rstd, dy, grads.write_dx, grads.dx,
                        grads.write_parameters, grads.weight, grads.bias);
  } else {
    rms_norm_backward(queue, x, norm.weight, norm.rstd, dy, grads.write_dx, grads.dx,
                      grads.write_parameters, grads.weight);
  }
}

/// The statistics of n rows; an RMSNorm keeps no mean.
inline MutView take_mean(const ModelConfig& config, Arena& arena, std::int64_t n) {
  return config.norm == Norm::layer_norm ? arena.take(Dtype::f32, {n}) : MutView();
}

}  // namespace llm
