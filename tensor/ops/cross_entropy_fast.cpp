#include "tensor/ops/cross_entropy_kernels.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/cross_entropy_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

float largest(const float* x, std::int64_t n) {
  Lanes max = broadcast(x[0]);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    max = maximum(max, first_lanes(n - i, load(x + i, n - i), x[0]));
  }
  return maximum_of_lanes(max);
}

/// Runs of 1,024 are summed in f32 lanes and these sums in f64: a vocabulary's sum keeps 24 bits.
float log_sum_exp(const float* logits, std::int64_t n) {
  const float max = largest(logits, n);
  const Lanes maxes = broadcast(max);
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += 1024) {
    const std::int64_t end = std::min(n, begin + 1024);
    Lanes run = broadcast(0);
    for (std::int64_t i = begin; i < end; i += n_lanes) {
      run = run + first_lanes(end - i, exponential(load(logits + i, end - i) - maxes), 0);
    }
    sum += double{sum_of_lanes(run)};
  }
  return static_cast<float>(double{max} + std::log(sum));
}

template <typename T>
void softmax_into(const float* logits, std::int64_t n, float log_sum, float scale, T* y) {
  const Lanes log_sums = broadcast(log_sum);
  const Lanes scales = broadcast(scale);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    store(scales * exponential(load(logits + i, n - i) - log_sums), y + i, n - i);
  }
}

void scaled_softmax(const float* logits, std::int64_t n, float log_sum, float scale,
                    MutElements y) {
  with_type_of(y.dtype,
               [&](auto type) { softmax_into(logits, n, log_sum, scale, y.as<decltype(type)>()); });
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(log_sum_exp);
HWY_EXPORT(scaled_softmax);
namespace fast {

float log_sum_exp(const float* logits, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(log_sum_exp)(logits, n);
}

void scaled_softmax(const float* logits, std::int64_t n, float log_sum, float scale,
                    MutElements y) {
  HWY_DYNAMIC_DISPATCH(scaled_softmax)(logits, n, log_sum, scale, y);
}

}  // namespace fast
}  // namespace llm
#endif
