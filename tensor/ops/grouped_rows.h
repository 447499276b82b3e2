#pragma once
#include "tensor/ops/router.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

// x, y and their gradients of a call have one dtype: f32, bf16 or f16.

// R = shape.n_rows(); of its rows those that the routing uses are read and set, and no others.

/// y[r] = x[the token of grouped row r]
///   x (n, C)   y (R, C)
void group_rows(Queue& queue, const RouterShape& shape, const Routing& routing, View x, MutView y);

/// Whether grouped rows come back by the routing's weights, or by 1 each: the gradient of
/// group_rows.
enum class Weigh : bool { no, yes };

/// y[t] = the sum over token t's visits of own experts, in order, of weight * x[its row], in f32
/// and rounded once.
///   x (R, C)   y (n, C)
void combine_rows(Queue& queue, const RouterShape& shape, const Routing& routing, Weigh weigh,
                  View x, MutView y);

/// Of combine_rows by weights: dx[row of v] = weight of v * dy[t], and dweights[v] = dy[t] . x[row
/// of v], for each visit v of token t; exactly 0 where the expert is another rank's. dx may be x.
///   x, dx (R, C)   dy (n, C)   dweights (n, k) f32
void combine_rows_backward(Queue& queue, const RouterShape& shape, const Routing& routing, View x,
                           View dy, MutView dx, MutView dweights);

/// What a thread keeps after combine_rows.
std::int64_t combine_scratch_bytes(std::int64_t width);

}  // namespace llm
