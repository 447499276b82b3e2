#pragma once
#include "tensor/ops/linear.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// Throws DataError as the ops below do; for tokens that ops read on a device, which checks
/// nothing. An empty view passes.
void check_tokens(View tokens, std::int64_t n_rows);

/// y[i] = table[tokens[i]] + positions[i % seq_len].
///   tokens (n) i32, each in [0, V): throws DataError naming the id otherwise, when it runs
///   table (V, C)   positions (>= seq_len, C) or empty   y (n, C)   n % seq_len == 0
///   table, positions and y have one dtype: f32, bf16 or f16
void embedding_forward(Queue& queue, View tokens, View table, View positions, std::int64_t seq_len,
                       MutView y);

/// A table of which this rank has the rows [first_row, first_row + rows of `table`) out of n_rows:
/// y[i] = table[tokens[i] - first_row], and 0 where another rank has that row; so the sum over the
/// ranks is the look-up. tokens are checked against n_rows, the rest as above.
void embedding_part_forward(Queue& queue, View tokens, View table, std::int64_t first_row,
                            std::int64_t n_rows, MutView y);
/// y[i] += positions[(first_row + i) % seq_len].
void add_positions(Queue& queue, View positions, std::int64_t seq_len, std::int64_t first_row,
                   MutView y);

/// dtable[tokens[i]] += dy[i], i in order, after a zero fill unless Write::add; dpositions[t] = sum
/// of dy[i] over i % seq_len == t, i in order (rows from seq_len on are zero). Either table may be
/// empty: another rank holds it.
///   dy f32, bf16 or f16   dtable, dpositions f32
/// With `part`, dtable has its rows from first_row on out of n_rows; other ranks' tokens add
/// nothing to it.
struct TablePart {
  std::int64_t first_row = 0;
  std::int64_t n_rows = 0;  ///< 0: dtable is the whole table
};
void embedding_backward(Queue& queue, View tokens, View dy, std::int64_t seq_len, Write write,
                        MutView dtable, MutView dpositions, TablePart part = {});

}  // namespace llm
