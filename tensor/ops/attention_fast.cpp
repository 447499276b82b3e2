#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/dropout_kernels.h"
#include "tensor/ops/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/attention_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

void rope(const RopeRow& p) {
  const std::int64_t half = p.head_dim / 2;
  const Lanes direction = broadcast(p.direction);
  for (std::int64_t head = 0; head < p.n_heads; ++head) {
    float* x = p.row + head * p.head_dim;
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

/// row[0, n) = exp(row - max), the rest up to `end` = 0. Returns the sum; `max` is the largest.
float exponentials(float* row, std::int64_t n, std::int64_t end, float* max) {
  Lanes most = broadcast(row[0]);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    most = maximum(most, first_lanes(n - i, load(row + i, n - i), row[0]));
  }
  *max = maximum_of_lanes(most);
  const Lanes maxes = broadcast(*max);
  Lanes sum = broadcast(0);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    const Lanes e = first_lanes(n - i, exponential(load(row + i, n - i) - maxes), 0);
    sum = sum + e;
    store(e, row + i, end - i);
  }
  for (std::int64_t i = (n + n_lanes - 1) / n_lanes * n_lanes; i < end; i += n_lanes) {
    store(broadcast(0), row + i, end - i);
  }
  return sum_of_lanes(sum);
}

/// y[i] *= factor
void scale_row(float factor, float* y, std::int64_t n) {
  const Lanes factors = broadcast(factor);
  for (std::int64_t i = 0; i < n; i += n_lanes) store(load(y + i, n - i) * factors, y + i, n - i);
}

void multiply_row(const float* factors, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    store(load(y + i, n - i) * load(factors + i, n - i), y + i, n - i);
  }
}

float dot(const float* x, const float* y, std::int64_t n) {
  Lanes sum = broadcast(0);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    sum = multiply_add(load(x + i, n - i), load(y + i, n - i), sum);
  }
  return sum_of_lanes(sum);
}

/// One row of the backward: from the scores and dp = do v to f p (in `scores`) and ds (in `dp`),
/// both 0 from n to `end`. `factors` is null without dropout.
void score_gradients(const ScoreRow& p) {
  const Lanes log_sum = broadcast(p.log_sum);
  const Lanes dout_out = broadcast(p.dout_out);
  const Lanes scale = broadcast(p.scale);
  for (std::int64_t i = 0; i < p.end; i += n_lanes) {
    const std::int64_t left = p.end - i;
    const std::int64_t n = std::max<std::int64_t>(0, p.n - i);
    const Lanes prob = first_lanes(n, exponential(load(p.scores + i, left) - log_sum), 0);
    const Lanes factor = p.factors ? load(p.factors + i, std::min(n, left)) : broadcast(1);
    const Lanes dp = first_lanes(n, load(p.dp + i, left), 0);
    store(factor * prob, p.scores + i, left);
    store(scale * prob * (factor * dp - dout_out), p.dp + i, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(rope);
HWY_EXPORT(exponentials);
HWY_EXPORT(scale_row);
HWY_EXPORT(multiply_row);
HWY_EXPORT(dot);
HWY_EXPORT(score_gradients);
namespace fast {
namespace {

/// Queries of one block: their scores against the keys up to the block's last row are one product,
/// so the masked half costs only the corner of each block.
constexpr std::int64_t block_rows = 64;

std::int64_t n_blocks(const AttentionShape& shape) {
  return (shape.seq_len + block_rows - 1) / block_rows;
}

/// Scratch of a tile, kept by the thread: rows of scores and of their gradients, and dropout
/// factors.
struct Scratch {
  std::vector<float> scores, dp, factors;
};

Scratch& scratch_for(const AttentionShape& shape) {
  static thread_local Scratch scratch;
  const auto n = static_cast<std::size_t>(block_rows * shape.seq_len);
  if (scratch.scores.size() < n) scratch.scores.resize(n);
  if (scratch.dp.size() < n) scratch.dp.resize(n);
  const auto row = static_cast<std::size_t>(shape.seq_len);
  if (scratch.factors.size() < row) scratch.factors.resize(row);
  return scratch;
}

/// Rows [begin, end) of one query head in one sample, and what it reads.
struct Block {
  AttentionShape shape;
  std::int64_t sample, head, begin, end;
  std::int64_t n_rows() const { return end - begin; }
  std::int64_t width() const { return shape.qkv_width(); }
  std::int64_t out_width() const { return shape.n_heads * shape.head_dim; }
  std::int64_t row(std::int64_t t) const { return sample * shape.seq_len + t; }
  std::int64_t out_at(std::int64_t t) const { return row(t) * out_width() + head * shape.head_dim; }
  std::int64_t query_at(std::int64_t t) const {
    return row(t) * width() + HeadColumns(shape).query(head);
  }
  std::int64_t kv_head() const { return head / HeadColumns(shape).group_size(); }
  std::int64_t key_at() const { return row(0) * width() + HeadColumns(shape).key(kv_head()); }
  std::int64_t value_at() const { return row(0) * width() + HeadColumns(shape).value(kv_head()); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }
};

Block block_of(const AttentionShape& shape, std::int64_t sample, std::int64_t head,
               std::int64_t block) {
  const std::int64_t begin = block * block_rows;
  return {shape, sample, head, begin, std::min(shape.seq_len, begin + block_rows)};
}

/// scores (n_rows, end) = scale * q k^T
void score_product(const Block& b, const float* qkv, float* scores) {
  matmul({.transpose_a = false,
          .transpose_b = true,
          .m = b.n_rows(),
          .n = b.end,
          .k = b.shape.head_dim,
          .alpha = b.scale(),
          .a = qkv + b.query_at(b.begin),
          .lda = b.width(),
          .b = qkv + b.key_at(),
          .ldb = b.width(),
          .beta = 0,
          .c = scores,
          .ldc = b.end});
}

/// Dropout's factors for row t into scratch; null where nothing is dropped.
const float* row_factors(const Block& b, const Dropout& dropout, std::uint64_t key, std::int64_t t,
                         Scratch& scratch) {
  if (dropout.p == 0) return nullptr;
  dropout_factors(key, dropout.p, (b.head * b.shape.seq_len + t) * b.shape.seq_len, t + 1,
                  scratch.factors.data());
  return scratch.factors.data();
}

void forward_block(const AttentionForward& call, const Block& b, std::uint64_t key,
                   Scratch& scratch) {
  float* scores = scratch.scores.data();
  score_product(b, call.qkv, scores);
  float sums[block_rows];
  for (std::int64_t t = b.begin; t < b.end; ++t) {
    float* row = scores + (t - b.begin) * b.end;
    float max = 0;
    const float sum = HWY_DYNAMIC_DISPATCH(exponentials)(row, t + 1, b.end, &max);
    sums[t - b.begin] = sum;
    call.log_sum_exp[(b.sample * b.shape.n_heads + b.head) * b.shape.seq_len + t] =
        max + std::log(sum);
    const float* factors = row_factors(b, call.dropout, key, t, scratch);
    if (factors) HWY_DYNAMIC_DISPATCH(multiply_row)(factors, row, t + 1);
  }
  matmul({.transpose_a = false,
          .transpose_b = false,
          .m = b.n_rows(),
          .n = b.shape.head_dim,
          .k = b.end,
          .alpha = 1,
          .a = scores,
          .lda = b.end,
          .b = call.qkv + b.value_at(),
          .ldb = b.width(),
          .beta = 0,
          .c = call.out + b.out_at(b.begin),
          .ldc = b.out_width()});
  for (std::int64_t t = b.begin; t < b.end; ++t) {
    HWY_DYNAMIC_DISPATCH(scale_row)(1 / sums[t - b.begin], call.out + b.out_at(t),
                                    b.shape.head_dim);
  }
}

/// dqkv of the block: its queries' gradients, and its part of the keys' and values'. The first
/// block of a tile overwrites these; it is the last of its head and reaches every key.
void backward_block(const AttentionBackward& call, const Block& b, bool is_first, std::uint64_t key,
                    Scratch& scratch) {
  float* scores = scratch.scores.data();
  float* dp = scratch.dp.data();
  const float* dout = call.dout + b.out_at(b.begin);
  const std::int64_t head_dim = b.shape.head_dim;
  score_product(b, call.qkv, scores);
  matmul({.transpose_a = false,
          .transpose_b = true,
          .m = b.n_rows(),
          .n = b.end,
          .k = head_dim,
          .alpha = 1,
          .a = dout,
          .lda = b.out_width(),
          .b = call.qkv + b.value_at(),
          .ldb = b.width(),
          .beta = 0,
          .c = dp,
          .ldc = b.end});
  for (std::int64_t t = b.begin; t < b.end; ++t) {
    const std::int64_t row = (t - b.begin) * b.end;
    const std::int64_t statistic = (b.sample * b.shape.n_heads + b.head) * b.shape.seq_len + t;
    const float dout_out =
        HWY_DYNAMIC_DISPATCH(dot)(call.dout + b.out_at(t), call.out + b.out_at(t), head_dim);
    HWY_DYNAMIC_DISPATCH(score_gradients)
    ({.n = t + 1,
      .end = b.end,
      .scale = b.scale(),
      .log_sum = call.log_sum_exp[statistic],
      .dout_out = dout_out,
      .factors = row_factors(b, call.dropout, key, t, scratch),
      .scores = scores + row,
      .dp = dp + row});
  }
  const float beta = is_first ? 0.0f : 1.0f;
  matmul({.transpose_a = true,
          .transpose_b = false,
          .m = b.end,
          .n = head_dim,
          .k = b.n_rows(),
          .alpha = 1,
          .a = scores,
          .lda = b.end,
          .b = dout,
          .ldb = b.out_width(),
          .beta = beta,
          .c = call.dqkv + b.value_at(),
          .ldc = b.width()});
  matmul({.transpose_a = true,
          .transpose_b = false,
          .m = b.end,
          .n = head_dim,
          .k = b.n_rows(),
          .alpha = 1,
          .a = dp,
          .lda = b.end,
          .b = call.qkv + b.query_at(b.begin),
          .ldb = b.width(),
          .beta = beta,
          .c = call.dqkv + b.key_at(),
          .ldc = b.width()});
  matmul({.transpose_a = false,
          .transpose_b = false,
          .m = b.n_rows(),
          .n = head_dim,
          .k = b.end,
          .alpha = 1,
          .a = dp,
          .lda = b.end,
          .b = call.qkv + b.key_at(),
          .ldb = b.width(),
          .beta = 0,
          .c = call.dqkv + b.query_at(b.begin),
          .ldc = b.width()});
}

}  // namespace

void rope(const RopeRow& row) {
  HWY_DYNAMIC_DISPATCH(rope)(row);
}

void attention_forward(const AttentionForward& call, std::int64_t sample, std::int64_t head) {
  Scratch& scratch = scratch_for(call.shape);
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(sample) : 0;
  for (std::int64_t block = 0; block < n_blocks(call.shape); ++block) {
    forward_block(call, block_of(call.shape, sample, head, block), key, scratch);
  }
}

void attention_backward(const AttentionBackward& call, std::int64_t sample, std::int64_t kv_head) {
  Scratch& scratch = scratch_for(call.shape);
  const std::uint64_t key = call.dropout.p > 0 ? call.dropout.key(sample) : 0;
  const std::int64_t group_size = HeadColumns(call.shape).group_size();
  bool is_first = true;
  for (std::int64_t head = kv_head * group_size; head < (kv_head + 1) * group_size; ++head) {
    for (std::int64_t block = n_blocks(call.shape) - 1; block >= 0; --block) {
      backward_block(call, block_of(call.shape, sample, head, block), is_first, key, scratch);
      is_first = false;
    }
  }
}

}  // namespace fast
}  // namespace llm
#endif
