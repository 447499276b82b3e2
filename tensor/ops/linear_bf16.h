#pragma once
#include "tensor/ops/linear.h"

/// linear.h by products of bf16 (ProductKernel::bf16). The views are checked and hold terms to sum.
namespace llm::bf16 {

void linear_forward(Queue& queue, View x, View weight, View bias, MutView y);
void linear_backward_input(Queue& queue, View dy, View weight, Write write, MutView dx);
void linear_backward_weight(Queue& queue, View x, View dy, Write write, MutView dweight,
                            MutView dbias);

OpScratch linear_scratch(std::int64_t n, std::int64_t n_in, std::int64_t n_out);

}  // namespace llm::bf16
