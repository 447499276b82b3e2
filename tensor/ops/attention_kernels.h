#pragma once
#include <cstdint>

#include "tensor/ops/attention.h"
#include "tensor/ops/elements.h"

/// Bodies of attention.h. `plain` is the definition; `fast` agrees to about 1e-5 of the largest
/// output.
namespace llm {

/// The whole call; a body works on one sample and one head of it.
struct AttentionForward {
  AttentionShape shape;
  const float* qkv;
  Dropout dropout;
  float* out;
  float* log_sum_exp;
  std::int64_t first_head = 0;  ///< what dropout calls head 0
};

struct AttentionBackward {
  AttentionShape shape;
  const float* qkv;
  const float* out;
  const float* log_sum_exp;
  const float* dout;
  Dropout dropout;
  float* dqkv;
  std::int64_t first_head = 0;  ///< what dropout calls head 0
};

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
}  // namespace fast

}  // namespace llm
