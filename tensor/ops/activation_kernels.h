#pragma once
#include <cstdint>

#include "tensor/ops/activation.h"
#include "tensor/ops/elements.h"

/// Bodies of activation.h on n contiguous elements. `plain` is the definition; `fast` agrees to
/// about 1e-6 of max(1, |x|) and gives each element bits that its value alone decides.
namespace llm::plain {
void activation_forward(Activation f, const float* x, float* y, std::int64_t n);
void activation_backward(Activation f, const float* x, const float* dy, float* dx, std::int64_t n);
void gated_forward(Activation f, const float* gate, const float* up, float* y, std::int64_t n);
void gated_backward(Activation f, const float* gate, const float* up, const float* dy, float* dgate,
                    float* dup, std::int64_t n);
}  // namespace llm::plain

/// All elements of one call have one dtype.
namespace llm::fast {
void activation_forward(Activation f, Elements x, MutElements y, std::int64_t n);
void activation_backward(Activation f, Elements x, Elements dy, MutElements dx, std::int64_t n);
void gated_forward(Activation f, Elements gate, Elements up, MutElements y, std::int64_t n);
void gated_backward(Activation f, Elements gate, Elements up, Elements dy, MutElements dgate,
                    MutElements dup, std::int64_t n);
}  // namespace llm::fast
