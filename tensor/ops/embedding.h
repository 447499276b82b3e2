#pragma once
#include "tensor/ops/linear.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// y[i] = table[tokens[i]] + positions[i % seq_len].
///   tokens (n) i32, each in [0, V): throws DataError naming the id otherwise, when it runs
///   table (V, C)   positions (>= seq_len, C) or empty   y (n, C)   n % seq_len == 0
///   table, positions and y have one dtype: f32, bf16 or f16
void embedding_forward(Queue& queue, View tokens, View table, View positions, std::int64_t seq_len,
                       MutView y);

/// dtable[tokens[i]] += dy[i], i in order, after a zero fill unless Write::add; dpositions[t] = sum
/// of dy[i] over i % seq_len == t, i in order (rows from seq_len on are zero). Either table may be
/// empty: another rank holds it.
///   dy f32, bf16 or f16   dtable, dpositions f32
void embedding_backward(Queue& queue, View tokens, View dy, std::int64_t seq_len, Write write,
                        MutView dtable, MutView dpositions);

}  // namespace llm
