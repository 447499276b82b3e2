#include "src/train/settings.h"

#include <algorithm>

namespace llm {

Schedule stage_schedule(const Settings& settings) {
  const auto n = static_cast<int>(settings.partition.microbatch_samples.size());
  return one_f_one_b({.stage = 0, .n_stages = 1, .n_microbatches = n});
}

void set_length(Settings& settings, const RunLength& length) {
  const std::int64_t batch = settings.partition.global_batch();
  std::int64_t n_steps = std::max<std::int64_t>(1, length.epochs * length.n_samples / batch);
  if (length.max_steps > 0) n_steps = std::min(n_steps, length.max_steps);
  settings.n_steps = n_steps;
  LrSchedule& lr = settings.optimizer.lr;
  lr.n_steps = n_steps;
  if (lr.decay_steps == wsd_tenth) lr.decay_steps = std::max<std::int64_t>(1, n_steps / 10);
  const std::int64_t epoch_steps = std::max<std::int64_t>(1, length.n_samples / batch);
  settings.validation = {
      .interval_steps = length.validation_interval > 0 ? length.validation_interval : epoch_steps,
      .n_steps = n_steps,
      .n_samples = length.n_validation_samples,
      .microbatch_samples = settings.partition.largest_microbatch()};
}

}  // namespace llm
