#pragma once
#include <cstdint>

#include "actors/model_state.h"
#include "actors/optimizer_shard.h"
#include "schedules/grid.h"
#include "schedules/partition.h"
#include "schedules/pipeline.h"
#include "schedules/validation.h"
#include "src/model/model_config.h"

namespace llm {

/// Everything that decides what a run computes and how its ranks share it, as plain values: no
/// file, rank or device was touched. The same on every rank.
struct Settings {
  ModelConfig model;
  std::int64_t seq_len = 512;
  Grid grid;
  Partition partition;
  Accumulation accumulation = Accumulation::tree;
  OptimizerConfig optimizer;
  ValidationPlan validation;
  std::int64_t bucket_bytes = 4 << 20;
  int n_reducer_lanes = 2;
  int threads_per_rank = 1;  ///< changes no bit
  /// All ranks are on one machine and map each other's gradients; changes no bit. Found out at the
  /// start, not set by anyone.
  bool shares_memory = false;
  std::uint64_t seed = 42;
  std::int64_t n_steps = 0;

  std::int64_t tokens_per_step() const { return partition.global_batch() * seq_len; }
};

/// For optimizer.lr.decay_steps until the length is known: a tenth of all steps.
inline constexpr std::int64_t wsd_tenth = -1;

/// Runs the microbatches of a flush in this order on a rank's one stage.
Schedule stage_schedule(const Settings& settings);

/// Sets n_steps and what follows from it: `epochs` over `n_samples` training samples, at most
/// `max_steps` where that is not 0; validation after every `interval` steps (0: after each epoch).
struct RunLength {
  std::int64_t n_samples = 0;  ///< of one epoch
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;
  std::int64_t validation_interval = 0;
  std::int64_t n_validation_samples = 0;  ///< 0: no validation
};
void set_length(Settings& settings, const RunLength& length);

}  // namespace llm
