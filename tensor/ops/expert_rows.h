#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

// Rows that several ranks send for the E experts of one (src/model/row_exchange.h). They come by
// rank, and a rank's by expert; a linear layer of experts wants them by expert (grouped_linear.h).
//   bounds (ranks, E + 1) i32   a rank's rows for expert e are its [bounds[e], bounds[e + 1])
//   begins (E + 1) i32          of the rows by expert; the last says how many rows there are
//   order (R) i32               of a row by expert: its place by rank

/// begins and order := the rows by expert, within one by rank and then as they came. There may be
/// fewer than R.
void order_by_expert(Queue& queue, View bounds, MutView begins, MutView order);

/// by_expert[r] = by_rank[order[r]], of the rows that there are.
///   by_rank, by_expert (R, C) of one dtype
void rows_by_expert(Queue& queue, View begins, View order, View by_rank, MutView by_expert);
/// by_rank[order[r]] = by_expert[r].
void rows_by_rank(Queue& queue, View begins, View order, View by_expert, MutView by_rank);

}  // namespace llm
