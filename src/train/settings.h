#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/model_state.h"
#include "actors/optimizer_shard.h"
#include "schedules/grid.h"
#include "schedules/partition.h"
#include "schedules/pipeline.h"
#include "schedules/pipeline_buffers.h"
#include "schedules/saves.h"
#include "schedules/stage_split.h"
#include "schedules/units.h"
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
  Pipeline pipeline;                     ///< one flush: n_ranks = grid.pp
  PipelineBuffers buffers;               ///< what waits between its stages
  std::optional<ScheduleKind> schedule;  ///< that the pipeline was made by; none: a file
  std::vector<Range> stage_layers;       ///< by stage, together all_layers(model)
  bool sequence_parallel = false;        ///< each tp rank has a part of the rows between products
  bool recompute_blocks = false;         ///< a block keeps its input alone; changes no bit
  Accumulation accumulation = Accumulation::tree;
  OptimizerConfig optimizer;
  ValidationPlan validation;
  std::int64_t bucket_bytes = 4 << 20;
  int n_reducer_lanes = 2;
  /// On devices NCCL's own collectives add up gradients over ranks: the bits of this layout alone.
  bool sums_by_nccl = false;
  int threads_per_rank = 1;     ///< changes no bit
  Device device = Device::cpu;  ///< where ranks compute; changes bits as another CPU's kernels do
  /// All ranks are on one machine and map each other's gradients; changes no bit. Found out at the
  /// start, not set by anyone.
  bool shares_memory = false;
  /// What the data-parallel ranks share out (ZeRO): 0 nothing, 1 masters and moments, 2 and after
  /// their sum the gradients too, 3 and parameters too. Changes no bit.
  int zero_stage = 0;
  /// A mixture's experts are spread over the data-parallel ranks, which send each other
  /// rows.
  bool spreads_experts = false;
  /// Under 3: layers of at least so many parameters are units of their own; 0: one unit. Changes no
  /// bit, and nor does when units are there.
  std::int64_t unit_min_parameters = 10'000'000;
  GatherPolicy gather_policy;
  /// Under 3 on devices: what a rank owns is in host memory, and updated there.
  bool offloads_parameters = false;
  /// On devices, so many ops and more that come again are a CUDA graph; 0: none. Changes no bit.
  int least_graph_ops = 0;
  std::uint64_t seed = 42;
  std::int64_t n_steps = 0;
  std::int64_t first_step = 0;  ///< steps that a checkpoint has done
  SavePlan saves;               ///< n_steps and validation of it are set with those of the run
  bool saves_sharded = false;   ///< each rank writes its part

  /// Whether data-parallel ranks add up gradients where they lie.
  bool sums_in_place() const { return shares_memory && grid.dp > 1 && device == Device::cpu; }
  /// Whether data-parallel ranks give their gradients to a library.
  bool sums_by_library() const { return sums_by_nccl && grid.dp > 1 && device == Device::cuda; }
  /// Whether parameters are there only by unit, for a while.
  bool shares_parameters() const { return zero_stage == 3 && (grid.dp > 1 || offloads()); }
  bool uses_graphs() const { return least_graph_ops > 0 && device == Device::cuda; }
  /// Whether what a rank owns is on the host, while its device computes.
  bool offloads() const { return offloads_parameters && zero_stage == 3 && device == Device::cuda; }
  /// Where masters and moments are.
  Device owned_device() const { return offloads() ? Device::cpu : device; }
  std::int64_t tokens_per_step() const { return partition.global_batch() * seq_len; }
};

/// For optimizer.lr.decay_steps until the length is known: a tenth of all steps.
inline constexpr std::int64_t wsd_tenth = -1;

/// How a pipeline is asked for.
struct PipelineChoice {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int n_ranks = 1;
  int n_chunks = 1;                         ///< of each rank
  std::vector<std::int64_t> n_blocks = {};  ///< of each stage; empty: balanced by cost
};
/// Sets grid.pp, pipeline and stage_layers, from the model, seq_len and the partition as they are:
/// after a change of these it is called again.
void set_pipeline(Settings& settings, const PipelineChoice& choice = {});
/// The same with a pipeline that is there.
void set_pipeline(Settings& settings, Pipeline pipeline, const std::vector<std::int64_t>& n_blocks);

/// Throws ContractBroken where pipeline and stage_layers do not fit model, grid and partition.
void check_pipeline(const Settings& settings);

/// flops_per_token by layer: 6 for each weight of a matrix product, attention's products without
/// the causal mask, and, so that it is not free, 6 for each element that the embedding looks up.
LayerCosts layer_costs(const ModelConfig& model, std::int64_t seq_len);

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
