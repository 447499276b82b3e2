#pragma once
#include <cstdint>

namespace llm {

/// What follows the warm-up. cosine and linear fall to min_ratio * peak at the last step; wsd stays
/// at the peak and falls linearly to it over the last decay_steps.
enum class LrShape : std::uint8_t { cosine, linear, constant, wsd };

struct LrSchedule {
  LrShape shape = LrShape::cosine;
  double peak = 1e-3;
  double min_ratio = 0.1;
  std::int64_t warmup_steps = 0;
  std::int64_t n_steps = 1;      ///< of the whole run
  std::int64_t decay_steps = 0;  ///< wsd only
};

/// The learning rate of optimizer step t = 0 .. n_steps - 1, and its last value from there on.
///   warm-up  peak * (t + 1) / warmup_steps, so that the first step trains and the peak is reached
///   after    the shape over u = (t - warmup) / (n_steps - 1 - warmup), u = 0 .. 1: the last step
///   has
///            exactly min_ratio * peak
/// A pure function of t: nothing to save, nothing to get wrong at resume.
double learning_rate(const LrSchedule& schedule, std::int64_t t);

}  // namespace llm
