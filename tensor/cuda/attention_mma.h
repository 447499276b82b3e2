#pragma once
#include <cstdint>

#include "tensor/ops/attention.h"
#include "tensor/view.h"

using cudaStream_t = struct CUstream_st*;

/// Attention on tensor cores: attention_forward and attention_backward of tensor/cuda/ops.h for the
/// heads that has_attention_mma has. Inputs of products are bf16 or f16, softmax weights and
/// gradients of scores too; all sums are f32, each in one order that follows from the shape.
namespace llm::cuda {

/// Whether a device has it for such heads. `capability` is 80 for 8.0.
constexpr bool has_attention_mma(int capability, Dtype dtype, std::int64_t head_dim) {
  const bool is_low = dtype == Dtype::bf16 || dtype == Dtype::f16;
  return capability >= 80 && is_low && (head_dim == 64 || head_dim == 128);
}

/// All views begin at multiples of 16 bytes.
void attention_forward_mma(cudaStream_t stream, AttentionShape shape, View qkv,
                           const Dropout& dropout, MutView out, MutView log_sum_exp);
void attention_backward_mma(cudaStream_t stream, AttentionShape shape, View qkv, View out,
                            View log_sum_exp, View dout, const Dropout& dropout, MutView dqkv);

}  // namespace llm::cuda
