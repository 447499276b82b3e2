#pragma once
#include <cstdint>

#include "schedules/validation.h"

namespace llm {

/// What becomes of a step's state.
enum class Save : std::uint8_t {
  never,
  if_best,  ///< saved where its validation loss is the least so far
  always,
};

/// After which steps a checkpoint is saved: the same on every rank.
struct SavePlan {
  bool enabled = false;             ///< there is a folder to save in
  std::int64_t interval_steps = 0;  ///< 0: only after a stop
  bool best = false;                ///< also after validations with the least loss so far
  std::int64_t n_steps = 0;         ///< of the run
  ValidationPlan validation = {};

  /// A run that was asked to stop validates no more.
  bool is_validated(std::int64_t step, bool stop) const {
    return !stop && validation.due_after(step);
  }
  Save after(std::int64_t step, bool stop) const {
    if (!enabled) return Save::never;
    if (stop) return Save::always;
    if (interval_steps == 0) return Save::never;
    if ((step + 1) % interval_steps == 0 || step + 1 == n_steps) return Save::always;
    return best && is_validated(step, stop) ? Save::if_best : Save::never;
  }
};

}  // namespace llm
