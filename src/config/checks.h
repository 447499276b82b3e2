#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/config/load.h"

namespace llm {

/// Refuses (ConfigError) what this version cannot run on `n_ranks` ranks: a strategy that is not
/// built yet on more than one rank, and tp_size, pp_size or dp_size that do not fit the ranks.
/// One rank runs under every strategy.
void check_supported(const LoadedConfig& loaded, std::int64_t n_ranks);

/// Refuses (ConfigError) a process started alone where distributed.gpus_per_node x num_nodes is
/// more than one rank: the message ends with the mpirun line. `command` is argv as it was typed.
void check_launch(const LoadedConfig& loaded, std::int64_t n_ranks,
                  const std::vector<std::string>& command);

/// How one optimizer step's samples are cut. The same on every data-parallel rank.
struct BatchPlan {
  /// Samples of each microbatch of one accumulation step, in order, adding up to
  /// training.batch_size: the first ones are larger by one where pp_n_microbatches does not divide
  /// it (8 by 3: 3, 3, 2).
  std::vector<std::int64_t> microbatch_samples;
  std::int64_t n_accumulation_steps = 1;
  std::int64_t n_microbatches = 1;        ///< a step and rank: A = accumulation x pp_n_microbatches
  std::int64_t global_batch_samples = 1;  ///< a step, over all ranks
};

/// Refuses (ConfigError, with all three numbers) a training.global_batch_size that batch_size,
/// gradient_accumulation_steps and `n_data_parallel` ranks cannot make, and more microbatches than
/// samples.
BatchPlan resolve_batch(const LoadedConfig& loaded, std::int64_t n_data_parallel);

/// Refuses (ConfigError, both numbers) a model.vocab_size below the ids that the tokenizer can
/// give.
void check_vocabulary(const LoadedConfig& loaded, std::int64_t n_tokenizer_ids);

/// Refuses (ConfigError) what the task needs and the configuration lacks: data.dataset_path, and
/// data.steps_per_epoch for stream_lm; and the tasks that this version does not have.
void check_task(const LoadedConfig& loaded, std::string_view task);

/// "mpi" or "nccl": distributed.backend, or what fits the devices this rank sees. An explicit nccl
/// without devices is refused with the line to change, and so is distributed.device: cuda.
std::string resolve_backend(const LoadedConfig& loaded, std::int64_t n_devices);

}  // namespace llm
