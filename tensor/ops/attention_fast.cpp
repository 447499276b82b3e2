#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/dropout_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/attention_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/strip_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

template <typename T>
void turn(const RopeRow& p) {
  const std::int64_t half = p.head_dim / 2;
  const Lanes direction = broadcast(p.direction);
  for (std::int64_t head = 0; head < p.n_heads; ++head) {
    T* x = p.row.as<T>() + head * p.head_dim;
    for (std::int64_t i = 0; i < half; i += n_lanes) {
      const std::int64_t n = half - i;
      const Lanes a = load(x + i, n);
      const Lanes b = load(x + half + i, n);
      const Lanes cos = load(p.cos + i, n);
      const Lanes sin = direction * load(p.sin + i, n);
      store(a * cos - b * sin, x + i, n);
      store(b * cos + a * sin, x + half + i, n);
    }
  }
}

void rope(const RopeRow& p) {
  with_type_of(p.row.dtype, [&](auto type) { turn<decltype(type)>(p); });
}

/// Queries whose gradients are in flight together: their scores stay in the second-level cache, and
/// the keys' and values' gradients are read and written once for all of them.
inline constexpr std::int64_t block_rows = 8 * strip_rows;

/// Scratch of a tile, kept by the thread: keys and values turned on their side, scores and their
/// gradients (a block of rows, padded to whole panels), one row of dropout factors.
struct Scratch {
  std::int64_t padded;
  std::vector<float> keys, values, scores, dp, factors;
};

Scratch& scratch_for(const AttentionShape& shape) {
  static thread_local Scratch scratch;
  scratch.padded = panels(shape.seq_len) * panel_width;
  const auto at_least = [](std::vector<float>& x, std::int64_t n) {
    if (x.size() < static_cast<std::size_t>(n)) x.resize(static_cast<std::size_t>(n));
  };
  at_least(scratch.keys, shape.head_dim * scratch.padded);
  at_least(scratch.values, shape.head_dim * scratch.padded);
  at_least(scratch.scores, block_rows * scratch.padded);
  at_least(scratch.dp, block_rows * scratch.padded);
  at_least(scratch.factors, scratch.padded);
  return scratch;
}

/// One query head of one sample: where its columns are. Dropout calls it first_head + head.
struct Head {
  AttentionShape shape;
  std::int64_t sample, head, first_head;
  std::int64_t width() const { return shape.qkv_width(); }
  std::int64_t out_width() const { return shape.n_heads * shape.head_dim; }
  std::int64_t row(std::int64_t t) const { return sample * shape.seq_len + t; }
  std::int64_t out(std::int64_t t) const { return row(t) * out_width() + head * shape.head_dim; }
  std::int64_t kv_head() const { return head / HeadColumns(shape).group_size(); }
  std::int64_t query(std::int64_t t) const {
    return row(t) * width() + HeadColumns(shape).query(head);
  }
  std::int64_t key(std::int64_t t) const {
    return row(t) * width() + HeadColumns(shape).key(kv_head());
  }
  std::int64_t value(std::int64_t t) const {
    return row(t) * width() + HeadColumns(shape).value(kv_head());
  }
  std::int64_t statistic(std::int64_t t) const {
    return (sample * shape.n_heads + head) * shape.seq_len + t;
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }
};

std::int64_t whole_lanes(std::int64_t n) {
  return (n + n_lanes - 1) / n_lanes * n_lanes;
}

void zero_lanes(float* row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += n_lanes) store(broadcast(0), row + i);
}

/// row[0, n) = exp(scale (row - max)), 0 from there to `end`, a multiple of 16. Returns the sum.
HWY_INLINE float exponentials(float* row, std::int64_t n, std::int64_t end, float scale,
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

HWY_INLINE void scale_row(float factor, float* y, std::int64_t n) {
  const Lanes factors = broadcast(factor);
  for (std::int64_t i = 0; i < n; i += n_lanes) store(load(y + i, n - i) * factors, y + i, n - i);
}

HWY_INLINE void multiply_row(const float* factors, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    store(load(y + i, n - i) * load(factors + i, n - i), y + i, n - i);
  }
}

HWY_INLINE float dot(const float* x, const float* y, std::int64_t n) {
  Lanes sum = broadcast(0);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    sum = multiply_add(load(x + i, n - i), load(y + i, n - i), sum);
  }
  return sum_of_lanes(sum);
}

/// Dropout's factors for row t into scratch; null where nothing is dropped.
const float* row_factors(const Head& h, const Dropout& dropout, std::uint64_t key, std::int64_t t,
                         Scratch& scratch) {
  if (dropout.p == 0) return nullptr;
  fast::dropout_factors(key, dropout.p,
                        ((h.first_head + h.head) * h.shape.seq_len + t) * h.shape.seq_len, t + 1,
                        scratch.factors.data());
  return scratch.factors.data();
}

/// Queries [begin, end): scores, softmax, values. The sums divide the output, not the row of p.
void forward_strip(const AttentionForward& call, const Head& h, std::int64_t begin,
                   std::int64_t end, std::uint64_t key, Scratch& scratch) {
  const std::int64_t head_dim = h.shape.head_dim;
  float* scores = scratch.scores.data();
  strip_product({.n_rows = end - begin,
                 .width = whole_lanes(end),
                 .depth = head_dim,
                 .a = call.qkv + h.query(begin),
                 .a_row = h.width(),
                 .a_depth = 1,
                 .b = scratch.keys.data(),
                 .b_depth = panel_width,
                 .b_panel = head_dim * panel_width,
                 .c = scores,
                 .c_row = scratch.padded},
                false);
  float sums[strip_rows];
  for (std::int64_t t = begin; t < end; ++t) {
    float* row = scores + (t - begin) * scratch.padded;
    float max = 0;
    const float sum = exponentials(row, t + 1, whole_lanes(end), h.scale(), &max);
    sums[t - begin] = sum;
    call.log_sum_exp[h.statistic(t)] = h.scale() * max + std::log(sum);
    const float* factors = row_factors(h, call.dropout, key, t, scratch);
    if (factors) multiply_row(factors, row, t + 1);
  }
  strip_product({.n_rows = end - begin,
                 .width = head_dim,
                 .depth = end,
                 .a = scores,
                 .a_row = scratch.padded,
                 .a_depth = 1,
                 .b = call.qkv + h.value(0),
                 .b_depth = h.width(),
                 .b_panel = panel_width,
                 .c = call.out + h.out(begin),
                 .c_row = h.out_width()},
                false);
  for (std::int64_t t = begin; t < end; ++t) {
    scale_row(1 / sums[t - begin], call.out + h.out(t), head_dim);
  }
}

void attention_forward(const AttentionForward& call, std::int64_t sample, std::int64_t head) {
  const Head h{call.shape, sample, head, call.first_head};
  const std::int64_t seq_len = call.shape.seq_len;
  Scratch& scratch = scratch_for(call.shape);
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(sample) : 0;
  pack_transposed(call.qkv + h.key(0), h.width(), seq_len, call.shape.head_dim,
                  scratch.keys.data());
  for (std::int64_t begin = 0; begin < seq_len; begin += strip_rows) {
    forward_strip(call, h, begin, std::min(seq_len, begin + strip_rows), key, scratch);
  }
}

/// What one row of the backward knows: n scores and dp = do v, to be padded with 0 up to `end`.
struct GradientRow {
  std::int64_t n, end;
  float scale, log_sum, dout_out;
  const float* factors;  ///< of dropout; null without
};

/// scores become factor * p and dp the gradient of q k.
HWY_INLINE void score_gradients(const GradientRow& p, float* scores, float* dp) {
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

/// Queries [begin, end) of a block that ends at `block_end`: f p and the scores' gradients into the
/// strip's rows of scratch, and the queries' gradients.
void backward_strip(const AttentionBackward& call, const Head& h, std::int64_t begin,
                    std::int64_t end, std::int64_t block_end, std::uint64_t key, float* scores,
                    float* dp, Scratch& scratch) {
  const std::int64_t head_dim = h.shape.head_dim;
  StripProduct product{.n_rows = end - begin,
                       .width = whole_lanes(end),
                       .depth = head_dim,
                       .a = call.qkv + h.query(begin),
                       .a_row = h.width(),
                       .a_depth = 1,
                       .b = scratch.keys.data(),
                       .b_depth = panel_width,
                       .b_panel = head_dim * panel_width,
                       .c = scores,
                       .c_row = scratch.padded};
  strip_product(product, false);
  product.a = call.dout + h.out(begin);
  product.a_row = h.out_width();
  product.b = scratch.values.data();
  product.c = dp;
  strip_product(product, false);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t row = (t - begin) * scratch.padded;
    score_gradients({.n = t + 1,
                     .end = whole_lanes(block_end),
                     .scale = h.scale(),
                     .log_sum = call.log_sum_exp[h.statistic(t)],
                     .dout_out = dot(call.dout + h.out(t), call.out + h.out(t), head_dim),
                     .factors = row_factors(h, call.dropout, key, t, scratch)},
                    scores + row, dp + row);
  }
  strip_product({.n_rows = end - begin,
                 .width = head_dim,
                 .depth = end,
                 .a = dp,
                 .a_row = scratch.padded,
                 .a_depth = 1,
                 .b = call.qkv + h.key(0),
                 .b_depth = h.width(),
                 .b_panel = panel_width,
                 .c = call.dqkv + h.query(begin),
                 .c_row = h.width()},
                false);
}

/// The part of dk and dv that queries [begin, end) give, six keys at a time. Queries before a
/// strip's first key give nothing.
void key_gradients(const AttentionBackward& call, const Head& h, std::int64_t begin,
                   std::int64_t end, bool add, const Scratch& scratch) {
  for (std::int64_t key = 0; key < end; key += strip_rows) {
    const std::int64_t first = std::max(begin, key);
    const std::int64_t at = (first - begin) * scratch.padded + key;
    StripProduct product{.n_rows = std::min(strip_rows, end - key),
                         .width = h.shape.head_dim,
                         .depth = end - first,
                         .a = scratch.scores.data() + at,
                         .a_row = 1,
                         .a_depth = scratch.padded,
                         .b = call.dout + h.out(first),
                         .b_depth = h.out_width(),
                         .b_panel = panel_width,
                         .c = call.dqkv + h.value(key),
                         .c_row = h.width()};
    strip_product(product, add);
    product.a = scratch.dp.data() + at;
    product.b = call.qkv + h.query(first);
    product.b_depth = h.width();
    product.c = call.dqkv + h.key(key);
    strip_product(product, add);
  }
}

/// The last block of the first query head reaches every key: it overwrites what the others add to.
void attention_backward(const AttentionBackward& call, std::int64_t sample, std::int64_t kv_head) {
  const AttentionShape& shape = call.shape;
  const std::int64_t group_size = HeadColumns(shape).group_size();
  const Head first{shape, sample, kv_head * group_size, call.first_head};
  Scratch& scratch = scratch_for(shape);
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(sample) : 0;
  pack_transposed(call.qkv + first.key(0), first.width(), shape.seq_len, shape.head_dim,
                  scratch.keys.data());
  pack_transposed(call.qkv + first.value(0), first.width(), shape.seq_len, shape.head_dim,
                  scratch.values.data());
  bool add = false;
  for (std::int64_t head = first.head; head < first.head + group_size; ++head) {
    const Head h{shape, sample, head, call.first_head};
    for (std::int64_t begin = (shape.seq_len - 1) / block_rows * block_rows; begin >= 0;
         begin -= block_rows) {
      const std::int64_t end = std::min(shape.seq_len, begin + block_rows);
      for (std::int64_t t = begin; t < end; t += strip_rows) {
        const std::int64_t row = (t - begin) * scratch.padded;
        backward_strip(call, h, t, std::min(end, t + strip_rows), end, key,
                       scratch.scores.data() + row, scratch.dp.data() + row, scratch);
      }
      key_gradients(call, h, begin, end, add, scratch);
      add = true;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(rope);
HWY_EXPORT(attention_forward);
HWY_EXPORT(attention_backward);
namespace fast {

void rope(const RopeRow& row) {
  HWY_DYNAMIC_DISPATCH(rope)(row);
}

void attention_forward(const AttentionForward& call, std::int64_t sample, std::int64_t head) {
  HWY_DYNAMIC_DISPATCH(attention_forward)(call, sample, head);
}

void attention_backward(const AttentionBackward& call, std::int64_t sample, std::int64_t kv_head) {
  HWY_DYNAMIC_DISPATCH(attention_backward)(call, sample, kv_head);
}

}  // namespace fast
}  // namespace llm
#endif
