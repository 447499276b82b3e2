#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// y = x; dtypes and sizes equal.
void copy(Queue& queue, View x, MutView y);
/// y = x rounded to y's dtype: any of f32, bf16 and f16 to any. To nearest even; what is too large
/// for f16 becomes infinite, NaN stays NaN. Not in place.
void convert(Queue& queue, View x, MutView y);
/// y[i] = value; y is f32, bf16 or f16.
void fill(Queue& queue, float value, MutView y);
/// y += x, element by element: residuals, and the nodes of every summation tree. Each of x and y is
/// f32, bf16 or f16; the sum in f32 is rounded to y once.
void add(Queue& queue, View x, MutView y);
/// y[r] += bias for each row r: y (n, C) f32, bf16 or f16, bias (C) f32.
void add_rows(Queue& queue, View bias, MutView y);

}  // namespace llm
