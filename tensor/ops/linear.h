#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// Whether an op overwrites its output or adds to what is there.
enum class Write : std::uint8_t { set, add };

/// y = x W^T + b. A row's bits do not depend on the other rows, nor on their number from 16 on.
///   x (n, in)   W (out, in)   b (out) or empty   y (n, out), not overlapping x
void linear_forward(Queue& queue, View x, View weight, View bias, MutView y);

/// dx = dy W (Write::add: dx += dy W).
///   dy (n, out)   W (out, in)   dx (n, in)
void linear_backward_input(Queue& queue, View dy, View weight, Write write, MutView dx);

/// dW = dy^T x and, where `dbias` is not empty, dbias = sum over rows of dy, rows in order.
///   x (n, in)   dy (n, out)   dW (out, in)   dbias (out) or empty
/// Write::add adds the product to what is there; its bits then depend on the library's blocking.
void linear_backward_weight(Queue& queue, View x, View dy, Write write, MutView dweight,
                            MutView dbias);

}  // namespace llm
