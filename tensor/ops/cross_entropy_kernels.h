#pragma once
#include <cstdint>

/// Bodies of cross_entropy.h on one row of logits. `plain` is the definition; `fast` agrees to
/// 1e-6.
namespace llm::plain {
/// log(sum over v of exp(logits[v])), from the largest logit so that nothing overflows.
float log_sum_exp(const float* logits, std::int64_t n);
/// logits[v] = scale * exp(logits[v] - log_sum), in place.
void scaled_softmax(float* logits, std::int64_t n, float log_sum, float scale);
}  // namespace llm::plain

namespace llm::fast {
float log_sum_exp(const float* logits, std::int64_t n);
void scaled_softmax(float* logits, std::int64_t n, float log_sum, float scale);
}  // namespace llm::fast
