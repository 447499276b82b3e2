#include <algorithm>
#include <cmath>

#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/attention_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/attention_rows-inl.h"
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

/// Scratch of a tile, kept by the thread: keys and values turned on their side, scores and their
/// gradients (a block of rows, padded to whole panels), one row of dropout factors.
struct HeadScratch {
  std::int64_t padded;
  Scratch<float> keys, values, scores, dp, factors;
};

HeadScratch& scratch_for(const AttentionShape& shape) {
  static thread_local HeadScratch scratch;
  scratch.padded = panels(shape.seq_len) * panel_width;
  at_least(scratch.keys, shape.head_dim * scratch.padded);
  at_least(scratch.values, shape.head_dim * scratch.padded);
  at_least(scratch.scores, block_rows * scratch.padded);
  at_least(scratch.dp, block_rows * scratch.padded);
  at_least(scratch.factors, scratch.padded);
  return scratch;
}
inline std::int64_t scratch_bytes(const AttentionShape& shape) {
  const std::int64_t padded = panels(shape.seq_len) * panel_width;
  return (2 * shape.head_dim + 2 * block_rows + 1) * padded *
         static_cast<std::int64_t>(sizeof(float));
}

/// Queries [begin, end): scores, softmax, values. The sums divide the output, not the row of p.
void forward_strip(const AttentionForward& call, const Head& h, std::int64_t begin,
                   std::int64_t end, std::uint64_t key, HeadScratch& scratch) {
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
    const float* factors = row_factors(h, call.dropout, key, t, scratch.factors.data());
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
  HeadScratch& scratch = scratch_for(call.shape);
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(sample) : 0;
  pack_transposed(call.qkv + h.key(0), h.width(), seq_len, call.shape.head_dim,
                  scratch.keys.data());
  for (std::int64_t begin = 0; begin < seq_len; begin += strip_rows) {
    forward_strip(call, h, begin, std::min(seq_len, begin + strip_rows), key, scratch);
  }
}

/// Queries [begin, end) of a block that ends at `block_end`: f p and the scores' gradients into the
/// strip's rows of scratch, and the queries' gradients.
void backward_strip(const AttentionBackward& call, const Head& h, std::int64_t begin,
                    std::int64_t end, std::int64_t block_end, std::uint64_t key, float* scores,
                    float* dp, HeadScratch& scratch) {
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
                     .factors = row_factors(h, call.dropout, key, t, scratch.factors.data())},
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
                   std::int64_t end, bool add, const HeadScratch& scratch) {
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
  HeadScratch& scratch = scratch_for(shape);
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

std::int64_t attention_scratch_bytes(const AttentionShape& shape) {
  return HWY_NAMESPACE::scratch_bytes(shape);
}

}  // namespace fast
}  // namespace llm
#endif
