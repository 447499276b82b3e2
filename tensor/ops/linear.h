#pragma once
#include "tensor/ops/scratch.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// Whether an op overwrites its output or adds to what is there.
enum class Write : std::uint8_t { set, add };

// Products and sums are f32 whatever the dtype of the matrices; a low dtype is f16 or bf16.

/// y = x W^T + b. A row's bits do not depend on the other rows, nor on their number from 16 on.
///   x (n, in)   W (out, in)   b (out) f32 or empty   y (n, out), not overlapping x
///   x and W have one dtype, f32 or low; y has the same or is f32
void linear_forward(Queue& queue, View x, View weight, View bias, MutView y);

/// Whether an op's hidden layer is read after it, or is room that the op may write to.
enum class Hidden : std::uint8_t { wanted, room };

/// up = x W^T + b and hidden = gelu_tanh(up): linear_forward, then activation_forward, which rounds
/// where they do. A device may have both in one product where up is f32; that has other bits, so
/// whoever wants the bits of `up` alone calls this with Hidden::room.
///   up, hidden (n, out) of x's dtype, not overlapping; the rest as in linear_forward
void linear_gelu_tanh(Queue& queue, View x, View weight, View bias, MutView up, MutView hidden,
                      Hidden use);

/// dx = dy W (Write::add: dx += dy W, and the sum is rounded once).
///   dy (n, out)   W (out, in)   dx (n, in)   all f32, or all of one low dtype
void linear_backward_input(Queue& queue, View dy, View weight, Write write, MutView dx);

/// dW = dy^T x and, where `dbias` is not empty, dbias = sum over rows of dy, rows in order.
///   x (n, in)   dy (n, out), of one dtype, f32 or low   dW (out, in) f32   dbias (out) f32 or
///   empty
/// Write::add adds the product to what is there; its bits then depend on the library's blocking.
void linear_backward_weight(Queue& queue, View x, View dy, Write write, MutView dweight,
                            MutView dbias);

/// What the three calls of a layer take at most, one after the other.
OpScratch linear_scratch(Dtype dtype, std::int64_t n, std::int64_t n_in, std::int64_t n_out);

}  // namespace llm
