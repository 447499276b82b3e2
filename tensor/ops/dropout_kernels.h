#pragma once
#include <cstdint>

#include "tensor/ops/elements.h"

/// Bodies of dropout.h. `plain` is the definition; `fast` has the same bits.
namespace llm::plain {
/// factors[i] = 0 or 1 / (1 - p) for elements first .. first + n - 1 of the sample with this key.
void dropout_factors(std::uint64_t key, float p, std::int64_t first, std::int64_t n,
                     float* factors);
/// out[i] = residual[i] + factor * x[i]; residual may be null. Elements as in dropout_factors.
void dropout(std::uint64_t key, float p, std::int64_t first, std::int64_t n, const float* x,
             const float* residual, float* out);
}  // namespace llm::plain

/// x, residual and out have one dtype.
namespace llm::fast {
void dropout_factors(std::uint64_t key, float p, std::int64_t first, std::int64_t n,
                     float* factors);
void dropout(std::uint64_t key, float p, std::int64_t first, std::int64_t n, Elements x,
             Elements residual, MutElements out);
}  // namespace llm::fast
