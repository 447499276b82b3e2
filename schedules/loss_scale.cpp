#include "schedules/loss_scale.h"

#include <algorithm>

namespace llm {

LossScale LossScale::after(const LossScaleConfig& config, bool overflowed) const {
  if (overflowed) return {std::max(config.minimum, scale * config.backoff), 0};
  // Beyond 2^24 a gradient of one token no longer fits where the loss starts from.
  constexpr double maximum = 16777216;
  const bool grows = config.growth_interval > 0 && n_good_steps + 1 >= config.growth_interval;
  if (grows) return {std::min(maximum, 2 * scale), 0};
  return {scale, n_good_steps + 1};
}

}  // namespace llm
