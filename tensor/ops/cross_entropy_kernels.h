#pragma once
#include <cstdint>

#include "tensor/ops/elements.h"

/// Bodies of cross_entropy.h on one row of logits. `plain` is the definition; `fast` agrees to
/// 1e-6.
namespace llm::plain {
/// log(sum over v of exp(logits[v])), from the largest logit so that nothing overflows.
float log_sum_exp(const float* logits, std::int64_t n);
/// y[v] = scale * exp(logits[v] - log_sum). y may be logits.
void scaled_softmax(const float* logits, std::int64_t n, float log_sum, float scale, float* y);
}  // namespace llm::plain

namespace llm::fast {
float log_sum_exp(const float* logits, std::int64_t n);
/// y is f32, bf16 or f16.
void scaled_softmax(const float* logits, std::int64_t n, float log_sum, float scale, MutElements y);
}  // namespace llm::fast
