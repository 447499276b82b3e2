#pragma once
#include "tensor/ops/linear.h"
#include "tensor/ops/scratch.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

// Linear layers of E experts side by side: expert e has rows [e * out, (e + 1) * out) of the weight
// and rows [begins[e], begins[e + 1]) of the activations. `begins` (E + 1) i32 is read when the ops
// run (tensor/ops/router.h); n is the number of all rows. Products, sums and dtypes as in linear.h.
// A row's bits depend on its expert and on nothing else: not on how many rows the expert has.

/// y = x W^T + b, row by row with the row's expert.
///   x (n, in)   W (E * out, in)   b (E * out) f32 or empty   y (n, out)
void grouped_linear_forward(Queue& queue, View begins, View x, View weight, View bias, MutView y);

/// dx = dy W (Write::add: dx += dy W, and the sum is rounded once).
///   dy (n, out)   dx (n, in)
void grouped_linear_backward_input(Queue& queue, View begins, View dy, View weight, Write write,
                                   MutView dx);

/// dW = dy^T x and, where `dbias` is not empty, dbias = sum of dy over the expert's rows, in order.
/// Without rows both are exactly 0, and with Write::add untouched.
///   dW (E * out, in) f32   dbias (E * out) f32 or empty
void grouped_linear_backward_weight(Queue& queue, View begins, View x, View dy, Write write,
                                    MutView dweight, MutView dbias);

/// What a thread keeps after the three calls, of n rows in all; nothing is shared.
OpScratch grouped_linear_scratch(Dtype dtype, std::int64_t n_experts, std::int64_t n,
                                 std::int64_t n_in, std::int64_t n_out);

}  // namespace llm
