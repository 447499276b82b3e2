#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// gelu is x * Phi(x) with the exact normal distribution (erf); gelu_tanh is GPT-2's approximation
/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); silu is x * sigmoid(x).
enum class Activation : std::uint8_t { gelu, gelu_tanh, silu, relu };

/// y = f(x), element by element. y may be x. Here and below, all views of a call are f32, or all
/// bf16, or all f16; arithmetic is in f32 and what is stored is rounded once, to nearest even.
/// `n_rows` (1) i32 is read when the op runs: of the matrices (n, F) so many rows are there, and
/// the others stay as they are; empty: all.
void activation_forward(Queue& queue, Activation f, View x, MutView y, View n_rows = {});
/// dx = f'(x) * dy. dx may be dy.
void activation_backward(Queue& queue, Activation f, View x, View dy, MutView dx, View n_rows = {});

/// The gated unit: y = f(gate) * up (SwiGLU with silu, GEGLU with gelu). All (n, F), contiguous.
void gated_forward(Queue& queue, Activation f, View gate, View up, MutView y, View n_rows = {});
/// dgate = dy * up * f'(gate), dup = dy * f(gate). dup may be dy.
void gated_backward(Queue& queue, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup, View n_rows = {});

}  // namespace llm
