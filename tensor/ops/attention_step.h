#pragma once
#include "tensor/ops/attention.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

// Attention of one token over those before it, whose keys and values were kept: what text is made
// with. All f32. Keys and values lie in (n_kv_heads, capacity, head_dim), position by position.

/// rope_forward of one row at `position`.
///   shape   of one token: batch and seq_len are 1
///   qkv (1, qkv_width)
void rope_step(Queue& queue, AttentionShape shape, float theta, std::int64_t position, MutView qkv);

/// Keeps the keys (after rotation) and values of a sequence's rows: row t goes to position begin +
/// t.
///   shape   batch is 1   qkv (seq_len, qkv_width)   begin + seq_len at most the capacity
void keep_keys_values(Queue& queue, AttentionShape shape, View qkv, std::int64_t begin,
                      MutView keys, MutView values);

/// The last row of attention_forward over a sequence of n_kept tokens, without dropout.
///   shape   of one token   qkv (1, qkv_width): its queries are read; its key and value are kept
///   n_kept  positions that keys and values hold, the token's own included
///   out (1, n_heads * head_dim)
void attention_step(Queue& queue, AttentionShape shape, View qkv, View keys, View values,
                    std::int64_t n_kept, MutView out);

}  // namespace llm
