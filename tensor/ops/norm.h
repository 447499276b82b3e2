#pragma once
#include "tensor/ops/linear.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// y = (x - mean) * rstd * weight + bias over each row, rstd = 1 / sqrt(variance + epsilon).
///   x, y (n, C)   weight (C)   bias (C) or empty   mean, rstd (n), f32, kept for backward
/// Here and below x, y, dx and dy have one dtype, f32, bf16 or f16, and the others are f32;
/// arithmetic is in f32 and what is stored is rounded once (with Write::add the sum is).
void layer_norm_forward(Queue& queue, View x, View weight, View bias, float epsilon, MutView y,
                        MutView mean, MutView rstd);

/// dx = (or +=) gradient of x; dweight, dbias = (or +=) sums over rows in a fixed order.
///   write_dx says what happens to dx; write_dw to dweight and dbias (dbias may be empty)
void layer_norm_backward(Queue& queue, View x, View weight, View mean, View rstd, View dy,
                         Write write_dx, MutView dx, Write write_dw, MutView dweight,
                         MutView dbias);

/// y = x * rstd * weight, rstd = 1 / sqrt(mean of x^2 + epsilon). Shapes as in layer_norm.
void rms_norm_forward(Queue& queue, View x, View weight, float epsilon, MutView y, MutView rstd);

void rms_norm_backward(Queue& queue, View x, View weight, View rstd, View dy, Write write_dx,
                       MutView dx, Write write_dw, MutView dweight);

}  // namespace llm
