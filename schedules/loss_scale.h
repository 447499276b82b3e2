#pragma once
#include <cstdint>

namespace llm {

/// How a dynamic loss scale moves (optimization.loss_scale_*). Powers of two keep it exact.
struct LossScaleConfig {
  double initial = 1;
  std::int64_t growth_interval =
      2000;              ///< steps without overflow before it doubles; 0: it never does
  double backoff = 0.5;  ///< times the scale after an overflow
  double minimum = 1;
};

/// The scale of one step and what it is next: a value that every rank moves alike, since all see
/// the same sums. What a checkpoint keeps.
struct LossScale {
  double scale = 1;
  std::int64_t n_good_steps = 0;  ///< since the last change

  /// After a step whose gradients were finite, or were not.
  LossScale after(const LossScaleConfig& config, bool overflowed) const;
  /// Whether another overflow leaves nothing to lower.
  bool at_minimum(const LossScaleConfig& config) const { return scale <= config.minimum; }
};

}  // namespace llm
