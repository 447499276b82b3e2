#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/config/load.h"

namespace llm {

/// Sizes of the rank grid, row-major [dp][pp][tp]; their product is the number of ranks.
struct RankGrid {
  std::int64_t dp = 1;
  std::int64_t pp = 1;
  std::int64_t tp = 1;
  bool operator==(const RankGrid&) const = default;
};

/// The grid of `n_ranks` ranks: dp ranks under ddp, zero and fsdp; under pp all of them in one
/// pipeline, or pipelines of pp_size ranks; under tp all of them share each layer, or groups of
/// tp_size do; under 3d what the sizes say. Refuses (ConfigError) tp_size, pp_size or dp_size that
/// do not fit the ranks.
RankGrid resolve_grid(const LoadedConfig& loaded, std::int64_t n_ranks);

/// What data-parallel ranks share out, 0 to 3. Refuses a stage that the strategy contradicts.
int resolve_zero_stage(const LoadedConfig& loaded);

/// Whether data-parallel ranks share out a mixture's experts. Refuses it without a mixture.
bool resolve_expert_parallel(const LoadedConfig& loaded);

/// PATH where distributed.pp_schedule is file:PATH, else empty.
std::string schedule_file(const Config& config);

/// How distributed.pp_schedule, pp_virtual_stages and pp_split cut the model.
struct PipelineFields {
  std::string schedule;                ///< of the field's choices, "file" for file:PATH
  std::int64_t n_chunks = 1;           ///< of each rank; 0: the file says
  std::vector<std::int64_t> n_blocks;  ///< of each stage; empty: balanced by cost
};

/// Refuses (ConfigError, with the numbers) more stages than blocks, virtual stages where the
/// schedule has none, and a split that does not have as many stages or does not add up. Where the
/// schedule is a file's, its chunks are for check_stages to look at.
PipelineFields resolve_pipeline(const LoadedConfig& loaded, std::int64_t n_pipeline_ranks);

/// The part of resolve_pipeline that needs the number of chunks on each rank.
void check_stages(const LoadedConfig& loaded, std::int64_t n_pipeline_ranks, std::int64_t n_chunks);

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
/// data.steps_per_epoch for stream_lm; what only another task has; and the tasks that this version
/// does not have.
void check_task(const LoadedConfig& loaded, std::string_view task);

/// What distributed.fsdp_cpu_offload means where ranks compute: on CPUs nothing (a note), on
/// devices with each rank's own experts (`spreads_experts`) a refusal (ConfigError), since ops read
/// these where they are owned.
void check_offload(LoadedConfig& loaded, bool on_devices, bool spreads_experts);

/// A note where distributed.cuda_graphs changes nothing: on CPUs, and under a trace.
void check_graphs(LoadedConfig& loaded, bool on_devices, bool is_traced);

/// Refuses (ConfigError) distributed.collectives: nccl where ranks compute on CPUs.
void check_collectives(const LoadedConfig& loaded, bool on_devices);

/// "mpi" or "nccl": distributed.backend, or what fits the devices this rank sees. An explicit nccl
/// without devices is refused with the line to change, and so is distributed.device: cuda.
std::string resolve_backend(const LoadedConfig& loaded, std::int64_t n_devices);

}  // namespace llm
