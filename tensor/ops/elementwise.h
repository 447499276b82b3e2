#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// y = x; sizes equal.
void copy(Queue& queue, View x, MutView y);
/// y[i] = value.
void fill(Queue& queue, float value, MutView y);
/// y += x, element by element: residuals, and the nodes of every summation tree.
void add(Queue& queue, View x, MutView y);
/// y[r] += bias for each row r: y (n, C), bias (C).
void add_rows(Queue& queue, View bias, MutView y);

}  // namespace llm
