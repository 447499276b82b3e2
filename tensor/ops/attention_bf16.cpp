// Attention by the CPU's products of bf16, which sum two terms at once: each operand is laid out so
// that the two terms of a sum lie side by side (strip_product-inl.h), once a head or a block.
#include <algorithm>

#include "src/base/range.h"
#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/attention_bf16.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/attention_rows-inl.h"
#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/strip_product-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

/// Pairs as they lie: of a row's columns 2 k and 2 k + 1.
const float* pairs(const Bf16* x) {
  return reinterpret_cast<const float*>(x);  // moved by vector instructions, never computed with
}

/// Sixteen numbers rounded to bf16, subnormal ones to 0.
HWY_INLINE Halves rounded(const Lanes& x) {
  Halves y;
  asm("vcvtneps2bf16 %1, %0" : "=v"(y.raw) : "v"(x.part[0].raw));
  return y;
}

HWY_INLINE void store_pairs(const Halves& low, const Halves& high, float* y) {
  const WordTag d;
  const Words both = hn::Or(hn::PromoteTo(d, low), hn::ShiftLeft<16>(hn::PromoteTo(d, high)));
  hn::StoreU(hn::BitCast(register_tag, both), register_tag, y);
}

HWY_INLINE void store_rounded(const Lanes& x, Bf16* y) {
  hn::StoreU(rounded(x), HalfTag(), reinterpret_cast<std::uint16_t*>(y));
}

/// Pairs of rows 2 k and 2 k + 1 of x (n_rows, width); an odd last row goes with zeros.
void pair_rows(const Bf16* x, std::int64_t stride, std::int64_t n_rows, std::int64_t width,
               float* y) {
  for (std::int64_t r = 0; r < n_rows; r += 2) {
    const auto* low = reinterpret_cast<const std::uint16_t*>(x + r * stride);
    for (std::int64_t c = 0; c < width; c += n_lanes) {
      const Halves high =
          r + 1 < n_rows ? hn::LoadU(HalfTag(), low + stride + c) : hn::Zero(HalfTag());
      store_pairs(hn::LoadU(HalfTag(), low + c), high, y + r / 2 * width + c);
    }
  }
}

/// Scratch of a tile, kept by the thread. Rows of scores are padded to whole panels.
struct PairScratch {
  std::int64_t padded;
  Scratch<float> keys, values;                ///< pairs of columns, turned on their side
  Scratch<float> row_pairs;                   ///< of values forward, of keys backward
  Scratch<float> queries, dout;               ///< pairs of a block's rows
  Scratch<float> scores, dp;                  ///< a strip, f32
  Scratch<Bf16> rounded;                      ///< a strip: what multiplies rows
  Scratch<float> prob_pairs, gradient_pairs;  ///< pairs of a block's rows
  Scratch<float> sums, dkeys, dvalues, factors;
};

PairScratch& pair_scratch(const AttentionShape& shape, bool backward) {
  static thread_local PairScratch s;
  s.padded = panels(shape.seq_len) * panel_width;
  const std::int64_t half_head = shape.head_dim / 2 * s.padded;
  at_least(s.keys, half_head);
  at_least(s.row_pairs, half_head);
  at_least(s.scores, strip_rows * s.padded);
  at_least(s.rounded, strip_rows * s.padded);
  at_least(s.sums, strip_rows * shape.head_dim);
  at_least(s.factors, s.padded);
  if (!backward) return s;
  at_least(s.values, half_head);
  at_least(s.dp, strip_rows * s.padded);
  at_least(s.queries, block_rows / 2 * shape.head_dim);
  at_least(s.dout, block_rows / 2 * shape.head_dim);
  at_least(s.prob_pairs, block_rows / 2 * s.padded);
  at_least(s.gradient_pairs, block_rows / 2 * s.padded);
  at_least(s.dkeys, shape.seq_len * shape.head_dim);
  at_least(s.dvalues, shape.seq_len * shape.head_dim);
  return s;
}

std::int64_t pair_scratch_bytes(const AttentionShape& shape) {
  const std::int64_t padded = panels(shape.seq_len) * panel_width;
  const std::int64_t head_rows = 3 * padded / 2 + strip_rows + block_rows + 2 * shape.seq_len;
  const std::int64_t score_rows = 2 * strip_rows + strip_rows / 2 + 1 + block_rows;
  return (head_rows * shape.head_dim + score_rows * padded) *
         static_cast<std::int64_t>(sizeof(float));
}

/// Rows of x, by a head's columns turned on their side, into c.
void multiply_head(const Bf16* x, std::int64_t stride, std::int64_t n_rows, std::int64_t width,
                   const Scratch<float>& turned, float* c, const AttentionShape& shape,
                   const PairScratch& scratch) {
  strip_product<Terms::pairs>({.n_rows = n_rows,
                               .width = width,
                               .depth = shape.head_dim / 2,
                               .a = pairs(x),
                               .a_row = stride / 2,
                               .a_depth = 1,
                               .b = turned.data(),
                               .b_depth = panel_width,
                               .b_panel = shape.head_dim / 2 * panel_width,
                               .c = c,
                               .c_row = scratch.padded},
                              false);
}

/// The strip's rounded rows, `depth` long, by pairs of rows: into sums.
void multiply_rounded(std::int64_t n_rows, std::int64_t depth, const AttentionShape& shape,
                      PairScratch& scratch) {
  strip_product<Terms::pairs>({.n_rows = n_rows,
                               .width = shape.head_dim,
                               .depth = (depth + 1) / 2,
                               .a = pairs(scratch.rounded.data()),
                               .a_row = scratch.padded / 2,
                               .a_depth = 1,
                               .b = scratch.row_pairs.data(),
                               .b_depth = shape.head_dim,
                               .b_panel = panel_width,
                               .c = scratch.sums.data(),
                               .c_row = shape.head_dim},
                              false);
}

HWY_INLINE void store_row(const float* from, float factor, Bf16* to, std::int64_t n) {
  const Lanes factors = broadcast(factor);
  for (std::int64_t i = 0; i < n; i += n_lanes) store_rounded(factors * load(from + i), to + i);
}

/// Queries [begin, end): scores, softmax, values.
void forward_strip(const AttentionForwardOf<Bf16>& call, const Head& h, Range queries,
                   std::uint64_t key, PairScratch& scratch) {
  const std::int64_t width = whole_lanes(queries.end);
  multiply_head(call.qkv + h.query(queries.begin), h.width(), queries.size(), width, scratch.keys,
                scratch.scores.data(), h.shape, scratch);
  float sums[strip_rows];
  for (std::int64_t t = queries.begin; t < queries.end; ++t) {
    const std::int64_t at = (t - queries.begin) * scratch.padded;
    float* row = scratch.scores.data() + at;
    float max = 0;
    const float sum = exponentials(row, t + 1, width, h.scale(), &max);
    sums[t - queries.begin] = sum;
    call.log_sum_exp[h.statistic(t)] = h.scale() * max + std::log(sum);
    const float* factors = row_factors(h, call.dropout, key, t, scratch.factors.data());
    if (factors) multiply_row(factors, row, t + 1);
    store_row(row, 1, scratch.rounded.data() + at, width);
  }
  multiply_rounded(queries.size(), queries.end, h.shape, scratch);
  for (std::int64_t r = 0; r < queries.size(); ++r) {
    store_row(scratch.sums.data() + r * h.shape.head_dim, 1 / sums[r],
              call.out + h.out(queries.begin + r), h.shape.head_dim);
  }
}

void forward_head(const AttentionForwardOf<Bf16>& call, std::int64_t sample, std::int64_t head) {
  const AttentionShape& shape = call.shape;
  const Head h{shape, sample, head, call.first_head};
  PairScratch& scratch = pair_scratch(shape, false);
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(sample) : 0;
  pack_transposed(pairs(call.qkv + h.key(0)), h.width() / 2, shape.seq_len, shape.head_dim / 2,
                  scratch.keys.data());
  pair_rows(call.qkv + h.value(0), h.width(), shape.seq_len, shape.head_dim,
            scratch.row_pairs.data());
  for (std::int64_t begin = 0; begin < shape.seq_len; begin += strip_rows) {
    forward_strip(call, h, {begin, std::min(shape.seq_len, begin + strip_rows)}, key, scratch);
  }
}

/// Probabilities and gradients of rows r and r + 1 of the strip: into pairs, and the gradients also
/// row by row.
void round_rows(std::int64_t r, std::int64_t n, float* prob_pairs, float* gradient_pairs,
                PairScratch& scratch) {
  const std::int64_t low = r * scratch.padded;
  const std::int64_t high = low + scratch.padded;
  auto* rows = reinterpret_cast<std::uint16_t*>(scratch.rounded.data());
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    store_pairs(rounded(load(scratch.scores.data() + low + i)),
                rounded(load(scratch.scores.data() + high + i)), prob_pairs + i);
    const Halves gradient = rounded(load(scratch.dp.data() + low + i));
    const Halves next_gradient = rounded(load(scratch.dp.data() + high + i));
    store_pairs(gradient, next_gradient, gradient_pairs + i);
    hn::StoreU(gradient, HalfTag(), rows + low + i);
    hn::StoreU(next_gradient, HalfTag(), rows + high + i);
  }
}

/// A strip of the block's queries: probabilities and gradients of scores into the block's pairs,
/// and the queries' gradients.
void backward_strip(const AttentionBackwardOf<Bf16>& call, const Head& h, Range queries,
                    Range block, std::uint64_t key, PairScratch& scratch) {
  const std::int64_t width = whole_lanes(queries.end);
  const std::int64_t block_width = whole_lanes(block.end);
  multiply_head(call.qkv + h.query(queries.begin), h.width(), queries.size(), width, scratch.keys,
                scratch.scores.data(), h.shape, scratch);
  multiply_head(call.dout + h.out(queries.begin), h.out_width(), queries.size(), width,
                scratch.values, scratch.dp.data(), h.shape, scratch);
  for (std::int64_t r = 0; r < queries.size(); ++r) {
    const std::int64_t t = queries.begin + r;
    score_gradients({.n = t + 1,
                     .end = block_width,
                     .scale = h.scale(),
                     .log_sum = call.log_sum_exp[h.statistic(t)],
                     .dout_out = dot(call.dout + h.out(t), call.out + h.out(t), h.shape.head_dim),
                     .factors = row_factors(h, call.dropout, key, t, scratch.factors.data())},
                    scratch.scores.data() + r * scratch.padded,
                    scratch.dp.data() + r * scratch.padded);
  }
  if (queries.size() % 2 == 1) {  // the last row's pair is a row of zeros
    zero_lanes(scratch.scores.data() + queries.size() * scratch.padded, 0, block_width);
    zero_lanes(scratch.dp.data() + queries.size() * scratch.padded, 0, block_width);
  }
  for (std::int64_t r = 0; r < queries.size(); r += 2) {
    const std::int64_t at = (queries.begin + r - block.begin) / 2 * scratch.padded;
    round_rows(r, block_width, scratch.prob_pairs.data() + at, scratch.gradient_pairs.data() + at,
               scratch);
  }
  multiply_rounded(queries.size(), queries.end, h.shape, scratch);
  for (std::int64_t r = 0; r < queries.size(); ++r) {
    store_row(scratch.sums.data() + r * h.shape.head_dim, 1, call.dqkv + h.query(queries.begin + r),
              h.shape.head_dim);
  }
}

/// The part of dk and dv that a block of queries gives, six keys at a time. Pairs of queries before
/// a strip's first key give nothing.
void key_gradients(const AttentionShape& shape, Range block, bool add, PairScratch& scratch) {
  for (std::int64_t key = 0; key < block.end; key += strip_rows) {
    const std::int64_t first = std::max<std::int64_t>(0, key - block.begin) / 2;
    StripProduct product{.n_rows = std::min(strip_rows, block.end - key),
                         .width = shape.head_dim,
                         .depth = (block.size() + 1) / 2 - first,
                         .a = scratch.prob_pairs.data() + first * scratch.padded + key,
                         .a_row = 1,
                         .a_depth = scratch.padded,
                         .b = scratch.dout.data() + first * shape.head_dim,
                         .b_depth = shape.head_dim,
                         .b_panel = panel_width,
                         .c = scratch.dvalues.data() + key * shape.head_dim,
                         .c_row = shape.head_dim};
    strip_product<Terms::pairs>(product, add);
    product.a = scratch.gradient_pairs.data() + first * scratch.padded + key;
    product.b = scratch.queries.data() + first * shape.head_dim;
    product.c = scratch.dkeys.data() + key * shape.head_dim;
    strip_product<Terms::pairs>(product, add);
  }
}

void backward_block(const AttentionBackwardOf<Bf16>& call, const Head& h, Range block, bool add,
                    PairScratch& scratch) {
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(h.sample) : 0;
  pair_rows(call.qkv + h.query(block.begin), h.width(), block.size(), h.shape.head_dim,
            scratch.queries.data());
  pair_rows(call.dout + h.out(block.begin), h.out_width(), block.size(), h.shape.head_dim,
            scratch.dout.data());
  for (std::int64_t begin = block.begin; begin < block.end; begin += strip_rows) {
    backward_strip(call, h, {begin, std::min(block.end, begin + strip_rows)}, block, key, scratch);
  }
  key_gradients(h.shape, block, add, scratch);
}

/// The last block of the first query head reaches every key: it overwrites what the others add to.
void backward_group(const AttentionBackwardOf<Bf16>& call, std::int64_t sample,
                    std::int64_t kv_head) {
  const AttentionShape& shape = call.shape;
  const std::int64_t group_size = HeadColumns(shape).group_size();
  const Head first{shape, sample, kv_head * group_size, call.first_head};
  PairScratch& scratch = pair_scratch(shape, true);
  pack_transposed(pairs(call.qkv + first.key(0)), first.width() / 2, shape.seq_len,
                  shape.head_dim / 2, scratch.keys.data());
  pack_transposed(pairs(call.qkv + first.value(0)), first.width() / 2, shape.seq_len,
                  shape.head_dim / 2, scratch.values.data());
  pair_rows(call.qkv + first.key(0), first.width(), shape.seq_len, shape.head_dim,
            scratch.row_pairs.data());
  bool add = false;
  for (std::int64_t head = first.head; head < first.head + group_size; ++head) {
    const Head h{shape, sample, head, call.first_head};
    for (std::int64_t begin = (shape.seq_len - 1) / block_rows * block_rows; begin >= 0;
         begin -= block_rows) {
      backward_block(call, h, {begin, std::min(shape.seq_len, begin + block_rows)}, add, scratch);
      add = true;
    }
  }
  for (std::int64_t u = 0; u < shape.seq_len; ++u) {
    const std::int64_t at = u * shape.head_dim;
    store_row(scratch.dkeys.data() + at, 1, call.dqkv + first.key(u), shape.head_dim);
    store_row(scratch.dvalues.data() + at, 1, call.dqkv + first.value(u), shape.head_dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace llm::bf16 {

void attention_forward(const AttentionForwardOf<Bf16>& call, std::int64_t sample,
                       std::int64_t head) {
  N_AVX3::forward_head(call, sample, head);
}

void attention_backward(const AttentionBackwardOf<Bf16>& call, std::int64_t sample,
                        std::int64_t kv_head) {
  N_AVX3::backward_group(call, sample, kv_head);
}

std::int64_t attention_scratch_bytes(const AttentionShape& shape) {
  return N_AVX3::pair_scratch_bytes(shape);
}

}  // namespace llm::bf16
#endif
