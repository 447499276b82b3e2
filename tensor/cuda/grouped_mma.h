#pragma once
#include <cstdint>

#include "tensor/ops/linear.h"
#include "tensor/view.h"

using cudaStream_t = struct CUstream_st*;

/// Linear layers of experts on tensor cores: grouped_linear_* of tensor/cuda/ops.h where
/// has_grouped_mma says so. Sums are f32 over terms in order, so that a row's bits depend on its
/// expert alone.
namespace llm::cuda {

/// `capability` is 80 for 8.0.
constexpr bool has_grouped_mma(int capability, Dtype dtype, std::int64_t n_in, std::int64_t n_out) {
  const bool is_low = dtype == Dtype::bf16 || dtype == Dtype::f16;
  return capability >= 80 && is_low && n_in % 8 == 0 && n_out % 8 == 0;
}

void grouped_forward_mma(cudaStream_t stream, View begins, View x, View weight, View bias,
                         MutView y);
void grouped_backward_input_mma(cudaStream_t stream, View begins, View dy, View weight, Write write,
                                MutView dx);
/// Without the bias's.
void grouped_backward_weight_mma(cudaStream_t stream, View begins, View x, View dy, Write write,
                                 MutView dweight);

}  // namespace llm::cuda
