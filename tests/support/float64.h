#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/router.h"

/// Ops in float64, straight from the formulas in the headers of tensor/ops: what the results of CPU
/// and device are measured against. Matrices are row-major; whole numbers are doubles too.
namespace llm::float64 {

using Doubles = std::vector<double>;

/// An element that a reference leaves out, where it looks at a sample of a large result.
inline constexpr double left_out = std::numeric_limits<double>::quiet_NaN();

/// f(x) and f'(x).
double activation(Activation f, double x);
double slope(Activation f, double x);

struct Norm {
  bool is_rms;
  double epsilon;
};
/// What a norm keeps of its rows: 0 as the mean of RMS norm.
struct RowStatistics {
  Doubles mean, rstd;
};
RowStatistics norm_statistics(const Norm& norm, const Doubles& x, std::size_t width);
/// `bias` may be empty.
Doubles norm_forward(const Norm& norm, const Doubles& x, const Doubles& weight,
                     const Doubles& bias);
struct NormGradients {
  Doubles dx, dweight, dbias;
};
NormGradients norm_backward(const Norm& norm, const Doubles& x, const Doubles& weight,
                            const Doubles& dy);

/// Linear layers of experts, as in grouped_linear.h; one expert is a linear layer.
struct Linear {
  std::vector<std::size_t> begins;  ///< of the experts' rows, and their end
  std::size_t n_in, n_out;
  /// Of a row beyond the last one, which wrong begins leave: the last expert.
  std::size_t expert_of(std::size_t row) const;
  std::size_t n_rows() const { return begins.back(); }
};
/// y of the rows of x that `rows` names; the others are left out. `bias` may be empty.
Doubles linear_forward(const Linear& layer, const Doubles& x, const Doubles& weight,
                       const Doubles& bias, const std::vector<std::size_t>& rows);
/// dx of these rows.
Doubles linear_backward_input(const Linear& layer, const Doubles& dy, const Doubles& weight,
                              const std::vector<std::size_t>& rows);
/// dW of the rows of W that `features` names.
Doubles linear_backward_weight(const Linear& layer, const Doubles& x, const Doubles& dy,
                               const std::vector<std::size_t>& features);
Doubles linear_backward_bias(const Linear& layer, const Doubles& dy);

/// The factor of an element under dropout: 0, or 1 / (1 - p), by the definition in dropout.h.
double dropout_factor(const Dropout& dropout, std::int64_t sample, std::int64_t element);

/// In place; `first` is the position of a sample's first row. Backward turns back.
void rope(const AttentionShape& shape, double theta, std::int64_t first, bool is_backward,
          Doubles& qkv);
/// Of one sample the query heads that read one key head.
struct HeadGroup {
  std::int64_t sample, kv_head;
};
std::vector<HeadGroup> all_groups(const AttentionShape& shape);
/// Sets what belongs to the group: of out, and of log_sum_exp.
void attention_forward(const AttentionShape& shape, const Doubles& qkv, const Dropout& dropout,
                       HeadGroup group, Doubles& out, Doubles& log_sum_exp);
/// The same of dqkv.
void attention_backward(const AttentionShape& shape, const Doubles& qkv, const Doubles& dout,
                        const Dropout& dropout, HeadGroup group, Doubles& dqkv);

/// log(sum of exp) of n numbers.
double log_sum_exp(const double* x, std::size_t n);
/// 0 of an ignored label.
double cross_entropy(const double* logits, std::size_t n_classes, std::int64_t label);

/// One weight under AdamW.
struct Adamw {
  double w, m = 0, v = 0;
  void step(const AdamwStep& step, double grad);
};

/// The softmax of each token's chosen logits (n, k).
Doubles router_weights(const RouterShape& shape, const Doubles& logits, const Doubles& experts);
/// What a routing chose, of n tokens, and their labels.
struct Routed {
  const Doubles& experts;  ///< (n, k)
  const Doubles& counts;   ///< (sequences, E)
  const Doubles& labels;   ///< (n)
};
/// What each token adds to the balance and to z (n, 2).
Doubles router_losses(const RouterShape& shape, const Doubles& logits, const Routed& routed);
/// dlogits of router_backward.
Doubles router_backward(const RouterShape& shape, const Doubles& logits, const Routed& routed,
                        const Doubles& dweights, const RouterWeights& weights, double scale);

}  // namespace llm::float64
