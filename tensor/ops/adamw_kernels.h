#pragma once
#include <cstdint>

#include "tensor/ops/adamw.h"
#include "tensor/ops/elements.h"

/// Bodies of adamw.h. `plain` is the definition; `fast` agrees to a few units in the last place for
/// adamw, and bit by bit for sum_of_squares.
namespace llm {

/// The step's numbers that are the same for every element, in f32.
struct AdamwFactors {
  explicit AdamwFactors(const AdamwStep& step);
  float keep_m;     ///< beta1
  float take_m;     ///< 1 - beta1
  float keep_v;     ///< beta2
  float take_v;     ///< 1 - beta2
  float decay;      ///< lr weight_decay
  float step_size;  ///< lr / (1 - beta1^t)
  float v_scale;    ///< 1 / (1 - beta2^t)
  float epsilon;
  float grad_scale;
};

namespace plain {
void adamw(const AdamwFactors& f, const float* grads, float* weights, float* m, float* v,
           std::int64_t n);
/// Element i goes to lane i % 16; lanes then fold in halves (l += l + 8, then 4, 2, 1).
double sum_of_squares(const float* x, std::int64_t n);
}  // namespace plain

namespace fast {
/// `copy` is null where there is none.
void adamw(const AdamwFactors& f, const float* grads, float* weights, float* m, float* v,
           MutElements copy, std::int64_t n);
double sum_of_squares(const float* x, std::int64_t n);
}  // namespace fast

}  // namespace llm
