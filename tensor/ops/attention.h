#pragma once
#include "src/base/host_device.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/scratch.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// Heads side by side in a row of qkv: n_heads queries, then n_kv_heads keys, then n_kv_heads
/// values, each head_dim wide. n_heads % n_kv_heads == 0; query head h reads key head h / (n_heads
/// / n_kv_heads).
struct AttentionShape {
  std::int64_t batch;
  std::int64_t seq_len;
  std::int64_t n_heads;
  std::int64_t n_kv_heads;
  std::int64_t head_dim;
  std::int64_t first_head = 0;  ///< what dropout calls head 0, where other ranks have others
  LLM_HOST_DEVICE std::int64_t qkv_width() const { return (n_heads + 2 * n_kv_heads) * head_dim; }
  LLM_HOST_DEVICE std::int64_t n_tokens() const { return batch * seq_len; }
};

/// Rotary positions (Su et al. 2021) on queries and keys in place, in the rotate-half order of
/// Hugging Face's Llama: with D = head_dim and i < D/2, (x[i], x[i + D/2]) turns by t *
/// theta^(-2i/D).
///   qkv (batch * seq_len, qkv_width) f32, bf16 or f16   head_dim even
/// rope_backward turns back by the same angle: it is its own gradient.
void rope_forward(Queue& queue, AttentionShape shape, float theta, MutView qkv);
void rope_backward(Queue& queue, AttentionShape shape, float theta, MutView dqkv);

/// Causal attention: out[t] = sum over s <= t of p[t, s] v[s], p = softmax of q k / sqrt(head_dim),
/// then dropout on p where dropout.p > 0 (element index (h * seq_len + t) * seq_len + s in its
/// sample).
///   qkv (batch * seq_len, qkv_width)   out (batch * seq_len, n_heads * head_dim)
///   log_sum_exp (batch, n_heads, seq_len) f32: kept for backward, which computes p again from it
///   qkv and out have one dtype, f32, bf16 or f16; scores, softmax and sums are f32
/// One (sample, head) pair is a tile. Scratch is a few rows of scores: no seq_len x seq_len matrix
/// exists.
void attention_forward(Queue& queue, AttentionShape shape, View qkv, const Dropout& dropout,
                       MutView out, MutView log_sum_exp);

/// dqkv from dout, overwritten; both have qkv's dtype. A sum is rounded once, when it is complete.
/// One (sample, key head) pair is a tile. Query heads that share a key head add into it in order of
/// the query head.
void attention_backward(Queue& queue, AttentionShape shape, View qkv, View out, View log_sum_exp,
                        View dout, const Dropout& dropout, MutView dqkv);

/// What both passes take at most. `shape` is a call's, `dtype` qkv's.
OpScratch attention_scratch(Dtype dtype, AttentionShape shape);

}  // namespace llm
