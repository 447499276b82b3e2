// What a row of attention's scores goes through, for the bodies in f32 and in bf16.
#if defined(LLM_TENSOR_OPS_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLM_TENSOR_OPS_ATTENTION_ROWS_INL_H_
#undef LLM_TENSOR_OPS_ATTENTION_ROWS_INL_H_
#else
#define LLM_TENSOR_OPS_ATTENTION_ROWS_INL_H_
#endif

#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/dropout_kernels.h"
#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/strip_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

/// Queries whose gradients are in flight together: their scores stay in the second-level cache, and
/// the keys' and values' gradients are read and written once for all of them.
inline constexpr std::int64_t block_rows = 8 * strip_rows;

inline std::int64_t whole_lanes(std::int64_t n) {
  return (n + n_lanes - 1) / n_lanes * n_lanes;
}

LANES_INLINE void zero_lanes(float* row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += n_lanes) store(broadcast(0), row + i);
}

/// row[0, n) = exp(scale (row - max)), 0 from there to `end`, a multiple of 16. Returns the sum.
LANES_INLINE float exponentials(float* row, std::int64_t n, std::int64_t end, float scale,
                                float* max) {
  Lanes most = broadcast(row[0]);
  std::int64_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes) most = maximum(most, load(row + i));
  if (i < n) most = maximum(most, first_lanes(n - i, load(row + i), row[0]));
  *max = maximum_of_lanes(most);
  const Lanes scales = broadcast(scale);
  const Lanes maxes = broadcast(*max);
  Lanes sum = broadcast(0);
  for (i = 0; i + n_lanes <= n; i += n_lanes) {
    const Lanes e = exponential(scales * (load(row + i) - maxes));
    sum = sum + e;
    store(e, row + i);
  }
  if (i < n) {
    const Lanes e = first_lanes(n - i, exponential(scales * (load(row + i) - maxes)), 0);
    sum = sum + e;
    store(e, row + i);
    i += n_lanes;
  }
  zero_lanes(row, i, end);
  return sum_of_lanes(sum);
}

LANES_INLINE void scale_row(float factor, float* y, std::int64_t n) {
  const Lanes factors = broadcast(factor);
  for (std::int64_t i = 0; i < n; i += n_lanes) store(load(y + i, n - i) * factors, y + i, n - i);
}

LANES_INLINE void multiply_row(const float* factors, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    store(load(y + i, n - i) * load(factors + i, n - i), y + i, n - i);
  }
}

template <typename T>
LANES_INLINE float dot(const T* x, const T* y, std::int64_t n) {
  Lanes sum = broadcast(0);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    sum = multiply_add(load(x + i, n - i), load(y + i, n - i), sum);
  }
  return sum_of_lanes(sum);
}

/// Dropout's factors for row t into `factors`; null where nothing is dropped.
inline const float* row_factors(const Head& h, const Dropout& dropout, std::uint64_t key,
                                std::int64_t t, float* factors) {
  if (dropout.p == 0) return nullptr;
  fast::dropout_factors(key, dropout.p,
                        ((h.first_head + h.head) * h.shape.seq_len + t) * h.shape.seq_len, t + 1,
                        factors);
  return factors;
}

/// What one row of the backward knows: n scores and dp = do v, to be padded with 0 up to `end`.
struct GradientRow {
  std::int64_t n, end;
  float scale, log_sum, dout_out;
  const float* factors;  ///< of dropout; null without
};

/// scores become factor * p and dp the gradient of q k.
LANES_INLINE void score_gradients(const GradientRow& p, float* scores, float* dp) {
  const Lanes minus_log_sum = broadcast(-p.log_sum);
  const Lanes dout_out = broadcast(p.dout_out);
  const Lanes scale = broadcast(p.scale);
  std::int64_t i = 0;
  for (; i < p.n; i += n_lanes) {
    const std::int64_t left = p.n - i;
    Lanes prob = exponential(multiply_add(scale, load(scores + i), minus_log_sum));
    Lanes dp_i = load(dp + i);
    const Lanes factor = p.factors ? load(p.factors + i, left) : broadcast(1);
    if (left < n_lanes) {
      prob = first_lanes(left, prob, 0);
      dp_i = first_lanes(left, dp_i, 0);
    }
    store(factor * prob, scores + i);
    store(scale * prob * (factor * dp_i - dout_out), dp + i);
  }
  zero_lanes(scores, i, p.end);
  zero_lanes(dp, i, p.end);
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#endif
