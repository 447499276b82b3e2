#pragma once
#include <cmath>
#include <cstdint>

#include "tensor/ops/attention.h"
#include "tensor/ops/elements.h"

/// Bodies of attention.h. `plain` is the definition; `fast` agrees to about 1e-5 of the largest
/// output.
namespace llm {

/// The whole call; a body works on one sample and one head of it.
template <typename T>
struct AttentionForwardOf {
  AttentionShape shape;
  const T* qkv;
  Dropout dropout;
  T* out;
  float* log_sum_exp;
  std::int64_t first_head = 0;  ///< what dropout calls head 0
};
using AttentionForward = AttentionForwardOf<float>;

template <typename T>
struct AttentionBackwardOf {
  AttentionShape shape;
  const T* qkv;
  const T* out;
  const float* log_sum_exp;
  const T* dout;
  Dropout dropout;
  T* dqkv;
  std::int64_t first_head = 0;  ///< what dropout calls head 0
};
using AttentionBackward = AttentionBackwardOf<float>;

/// Where a head's columns begin in a row of qkv.
struct HeadColumns {
  explicit HeadColumns(const AttentionShape& shape) : shape_(shape) {}
  std::int64_t group_size() const { return shape_.n_heads / shape_.n_kv_heads; }
  std::int64_t query(std::int64_t head) const { return head * shape_.head_dim; }
  std::int64_t key(std::int64_t kv_head) const { return query(shape_.n_heads + kv_head); }
  std::int64_t value(std::int64_t kv_head) const { return key(shape_.n_kv_heads + kv_head); }

 private:
  AttentionShape shape_;
};

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

/// cos and sin of t * theta^(-2 i / head_dim), rounded from f64: entry t * head_dim / 2 + i. Kept
/// for the thread; valid until its next call.
struct RopeTable {
  const float* cos;
  const float* sin;
};
RopeTable rope_table(const AttentionShape& shape, float theta);

/// One row of `n_heads` heads, turned in place; `direction` is 1 or -1.
struct RopeRow {
  std::int64_t n_heads;
  std::int64_t head_dim;
  const float* cos;
  const float* sin;
  float direction;
  MutElements row;
};

namespace plain {
void rope(const RopeRow& row);
void attention_forward(const AttentionForward& call, std::int64_t sample, std::int64_t head);
/// Writes the key and value gradients of `kv_head` and the query gradients of its whole group.
void attention_backward(const AttentionBackward& call, std::int64_t sample, std::int64_t kv_head);
}  // namespace plain

namespace fast {
void rope(const RopeRow& row);
void attention_forward(const AttentionForward& call, std::int64_t sample, std::int64_t head);
void attention_backward(const AttentionBackward& call, std::int64_t sample, std::int64_t kv_head);
/// What a thread keeps after both.
std::int64_t attention_scratch_bytes(const AttentionShape& shape);
}  // namespace fast

/// By the CPU's products of bf16: where has_fast_bf16() and head_dim is a multiple of 16. Scores,
/// sums and softmax are f32; probabilities and the gradients of scores are rounded to bf16.
namespace bf16 {
void attention_forward(const AttentionForwardOf<Bf16>& call, std::int64_t sample,
                       std::int64_t head);
void attention_backward(const AttentionBackwardOf<Bf16>& call, std::int64_t sample,
                        std::int64_t kv_head);
std::int64_t attention_scratch_bytes(const AttentionShape& shape);
}  // namespace bf16

}  // namespace llm
