#include "schedules/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/base/check.h"

namespace llm {
namespace {

/// Weight of the peak against the minimum, 1 .. 0, at the share u of the decay.
double falling(LrShape shape, double u) {
  return shape == LrShape::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * u)) : 1 - u;
}

}  // namespace

double learning_rate(const LrSchedule& s, std::int64_t t) {
  CHECK_CONTRACT(t >= 0 && s.n_steps >= 1 && s.warmup_steps >= 0, "a step is counted from 0");
  if (t < s.warmup_steps) {
    return s.peak * static_cast<double>(t + 1) / static_cast<double>(s.warmup_steps);
  }
  if (s.shape == LrShape::constant) return s.peak;
  const std::int64_t last = s.n_steps - 1;
  const std::int64_t begin =
      s.shape == LrShape::wsd ? std::max(s.warmup_steps, last - s.decay_steps) : s.warmup_steps;
  if (t >= last && last > begin) return s.peak * s.min_ratio;
  if (t <= begin || last <= begin) return s.peak;
  const double u = static_cast<double>(t - begin) / static_cast<double>(last - begin);
  return s.peak * (s.min_ratio + (1 - s.min_ratio) * falling(s.shape, u));
}

}  // namespace llm
