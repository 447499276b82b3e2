#pragma once
#include <cstdint>

#include "schedules/saves.h"
#include "tensor/view.h"

namespace llm {

/// Samples of one microbatch, from the data feed. The memory is the feed's, until the next step.
struct Microbatch {
  Microbatch(std::int64_t first_sample_, std::int64_t batch_, View tokens_, View labels_)
      : first_sample(first_sample_), batch(batch_), tokens(tokens_), labels(labels_) {}
  std::int64_t first_sample;  ///< index in the step's global batch
  std::int64_t batch;
  View tokens;  ///< (batch * seq_len) i32
  View labels;  ///< (batch * seq_len) i32
};

/// Something that needs no words: a bucket's gradient is complete, a bucket is summed.
struct Ready {};

/// The sum of the losses of a microbatch's valid tokens, and how many they are.
struct LossReport {
  double sum = 0;
  std::int64_t n_valid = 0;
};

/// One rank's part in what all ranks must know of a step before it is applied.
struct StepFacts {
  std::int64_t n_valid = 0;         ///< valid tokens of the rank's microbatches
  std::int64_t stop_requested = 0;  ///< 1: a signal arrived; every rank stops after this step
};

/// The weights of a step are in place.
struct ParametersUpdated {
  bool stop = false;      ///< do not begin this step: a stop was agreed on
  double loss_scale = 1;  ///< of this step: backward starts from it, times the plan's 2^-k
};

/// A step is over whose state may be saved: weights and moments stay as they are until the writer
/// of checkpoints has answered.
struct StepEnd {
  std::int64_t step = 0;
  Save save = Save::never;
  bool is_validated = false;  ///< a validation loss of these weights follows
  bool is_last = false;       ///< nothing changes after it
  std::int64_t n_updates = 0;
  double loss_scale = 1;  ///< of the next step, and since when it is that
  std::int64_t n_good_steps = 0;
  std::int64_t begin_ns = 0;  ///< since when training waits
};

/// What the optimizer says of a step, the same on every rank.
struct StepReport {
  double grad_norm = 0;
  double lr = 0;
  double loss_scale = 1;
  std::int64_t n_valid = 0;
  std::int64_t n_updates = 0;  ///< AdamW's t after this step
  bool skipped = false;        ///< no valid token, or a gradient that is not finite
  bool stop = false;
};

}  // namespace llm
