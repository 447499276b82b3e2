#include "src/train/settings_from_config.h"

#include <fmt/format.h>
#include "schedules/pipeline_file.h"
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/config/checks.h"
#include "src/config/rules.h"
#include "src/train/rank_plan.h"

namespace llm {
namespace {

Activation activation_of(const std::string& name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  if (name == "relu") return Activation::relu;
  throw ConfigError("model.mlp_activation: '" + name +
                    "' is not one of gelu, gelu_tanh, silu, relu");
}

LrShape lr_shape_of(const std::string& name) {
  if (name == "cosine") return LrShape::cosine;
  if (name == "linear") return LrShape::linear;
  if (name == "constant") return LrShape::constant;
  if (name == "wsd") return LrShape::wsd;
  throw ConfigError("training.scheduler_type: '" + name +
                    "' is not one of cosine, linear, constant, wsd");
}

Dtype compute_dtype(const Config& config, bool has_fast_bf16) {
  const DistributedConfig& distributed = config.distributed;
  if (distributed.parallel_strategy == "fsdp") {
    return distributed.fsdp_mixed_precision == "fp32"   ? Dtype::f32
           : distributed.fsdp_mixed_precision == "fp16" ? Dtype::f16
                                                        : Dtype::bf16;
  }
  const OptimizationConfig& optimization = config.optimization;
  if (!optimization.use_amp || optimization.amp_dtype == "float32") return Dtype::f32;
  if (optimization.amp_dtype == "float16") return Dtype::f16;
  if (optimization.amp_dtype == "bfloat16") return Dtype::bf16;
  return has_fast_bf16 ? Dtype::bf16 : Dtype::f32;
}

ScheduleKind schedule_kind_of(const std::string& name) {
  if (name == "gpipe") return ScheduleKind::gpipe;
  if (name == "1f1b") return ScheduleKind::one_f_one_b;
  if (name == "1f1b_pairs") return ScheduleKind::one_f_one_b_pairs;
  if (name == "interleaved") return ScheduleKind::interleaved;
  if (name == "zero_bubble") return ScheduleKind::zero_bubble;
  if (name == "zero_bubble_v") return ScheduleKind::zero_bubble_v;
  throw ConfigError("distributed.pp_schedule: '" + name + "' is no schedule");
}

OptimizerConfig optimizer_of(const TrainingConfig& training) {
  OptimizerConfig optimizer;
  optimizer.lr = {.shape = lr_shape_of(training.scheduler_type),
                  .peak = training.lr,
                  .min_ratio = training.min_lr_ratio,
                  .warmup_steps = training.warmup_steps,
                  .decay_steps = training.wsd_decay_steps.value_or(wsd_tenth)};
  optimizer.beta1 = training.beta1;
  optimizer.beta2 = training.beta2;
  optimizer.epsilon = training.adam_eps;
  optimizer.weight_decay = training.weight_decay;
  optimizer.decay_embeddings = training.decay_embeddings;
  optimizer.clip_norm = training.gradient_clip_val;
  return optimizer;
}

/// The pipeline of a schedule file, which has to be the one that the other fields ask for.
Pipeline pipeline_from(const LoadedConfig& loaded, const PipelineFields& fields,
                       const PipelineShape& shape, const std::string& text) {
  const char* const field = "distributed.pp_schedule";
  const std::string file = schedule_file(loaded.config);
  const Place place = place_of(loaded, {field});
  Pipeline pipeline;
  try {
    pipeline = read_pipeline(file, text);
  } catch (const ConfigError& e) {
    refuse(place, field, e.what());
  }
  const auto require = [&](int in_file, int wanted, const char* what, const char* way_out) {
    if (in_file == wanted) return;
    refuse(place, field,
           fmt::format("{} has {} {}, but {}", file, in_file, what,
                       fmt::format(fmt::runtime(way_out), wanted)));
  };
  require(pipeline.n_ranks, shape.n_ranks, "ranks",
          "this run's pipelines have {0}; write {0} lines with a schedule");
  require(pipeline.n_microbatches, shape.n_microbatches, "microbatches",
          "distributed.pp_n_microbatches is {0}; make them equal");
  if (fields.n_chunks > 0) {
    require(pipeline.n_chunks, static_cast<int>(fields.n_chunks), "chunks a rank",
            "distributed.pp_virtual_stages is {0}; remove that field, the file says it");
  }
  check_stages(loaded, pipeline.n_ranks, pipeline.n_chunks);
  return pipeline;
}

void set_pipeline_from(Settings& settings, const LoadedConfig& loaded,
                       const std::string& schedule_text) {
  const PipelineFields fields = resolve_pipeline(loaded, settings.grid.pp);
  const PipelineShape shape{
      .n_ranks = settings.grid.pp,
      .n_chunks = static_cast<int>(fields.n_chunks),
      .n_microbatches = static_cast<int>(settings.partition.microbatch_samples.size())};
  if (fields.schedule == "file") {
    set_pipeline(settings, pipeline_from(loaded, fields, shape, schedule_text), fields.n_blocks);
  } else {
    set_pipeline(settings, {.schedule = schedule_kind_of(fields.schedule),
                            .n_ranks = shape.n_ranks,
                            .n_chunks = shape.n_chunks,
                            .n_blocks = fields.n_blocks});
  }
}

}  // namespace

std::string read_schedule(const LoadedConfig& loaded) {
  const std::string file = schedule_file(loaded.config);
  if (file.empty()) return "";
  try {
    return read_file(file);
  } catch (const FileError& e) {
    refuse(place_of(loaded, {"distributed.pp_schedule"}), "distributed.pp_schedule", e.what());
  }
}

ModelConfig decoder_config(const ModelSection& model) {
  ModelConfig config;
  config.hidden_size = model.hidden_size;
  config.n_layers = model.num_layers;
  config.n_heads = model.num_heads;
  config.n_kv_heads = model.n_kv_heads();
  config.intermediate_size = model.mlp_size();
  config.vocab_size = model.vocab_size;
  config.max_seq_len = model.max_seq_len;
  config.dropout = static_cast<float>(model.dropout);
  config.norm = model.norm_impl == "rms_norm" ? Norm::rms_norm : Norm::layer_norm;
  config.norm_epsilon = static_cast<float>(model.norm_eps);
  config.positions = model.use_rope               ? Positions::rotary
                     : model.pos_encoding_learned ? Positions::learned
                                                  : Positions::sinusoidal;
  config.rope_theta = static_cast<float>(model.rope_theta);
  config.activation = activation_of(model.mlp_activation);
  config.gated = model.use_glu;
  config.n_experts = model.num_experts;
  config.top_k = model.top_k;
  config.router_weights = {.balance = static_cast<float>(model.router_aux_loss_coef),
                           .z = static_cast<float>(model.router_z_loss_coef)};
  config.qkv_bias = model.qkv_bias;
  config.mlp_bias = model.mlp_bias;
  config.lm_head_bias = model.lm_head_bias;
  config.tie_embeddings = model.tie_embeddings;
  check(config);
  return config;
}

Settings settings_from(const LoadedConfig& loaded, std::int64_t n_ranks, bool has_fast_bf16,
                       const std::string& schedule_text) {
  const RankGrid grid = resolve_grid(loaded, n_ranks);
  const Config& config = loaded.config;
  Settings settings;
  settings.model = decoder_config(config.model);
  settings.seq_len = config.data.max_seq_len;
  settings.grid = {.dp = static_cast<int>(grid.dp),
                   .pp = static_cast<int>(grid.pp),
                   .tp = static_cast<int>(grid.tp)};
  settings.sequence_parallel = config.distributed.sequence_parallel;
  settings.spreads_experts = resolve_expert_parallel(loaded) && settings.grid.dp > 1;
  check(model_of(settings, 0));
  const BatchPlan batch = resolve_batch(loaded, grid.dp);
  settings.partition = {.microbatch_samples = batch.microbatch_samples,
                        .n_accumulation_steps = static_cast<int>(batch.n_accumulation_steps),
                        .dp = settings.grid.dp};
  settings.accumulation =
      config.numerics.accumulation == "tree" ? Accumulation::tree : Accumulation::sequential;
  settings.optimizer = optimizer_of(config.training);
  settings.model.compute = compute_dtype(config, has_fast_bf16);
  if (settings.model.compute == Dtype::f16) {
    const OptimizationConfig& o = config.optimization;
    settings.optimizer.loss_scale = {.initial = o.loss_scale_init,
                                     .growth_interval = o.loss_scale_growth_interval,
                                     .backoff = o.loss_scale_backoff,
                                     .minimum = o.loss_scale_min};
  }
  settings.bucket_bytes = config.distributed.bucket_bytes;
  settings.sums_by_nccl = config.distributed.collectives == "nccl";
  settings.zero_stage = resolve_zero_stage(loaded);
  settings.unit_min_parameters = config.distributed.fsdp_auto_wrap_min_params;
  settings.gather_policy = {.n_ahead = static_cast<int>(config.distributed.fsdp_prefetch_units),
                            .reshard = config.distributed.fsdp_reshard_after_forward};
  settings.offloads_parameters = config.distributed.fsdp_cpu_offload;
  // A graph's launch takes the host about as long as two or three kernels'.
  settings.least_graph_ops = config.distributed.cuda_graphs ? 8 : 0;
  settings.threads_per_rank = static_cast<int>(config.distributed.threads_per_rank);
  settings.seed = static_cast<std::uint64_t>(config.training.seed);
  settings.saves.enabled = true;
  settings.saves.interval_steps = config.checkpoint.save_interval_steps;
  settings.saves.best = config.checkpoint.save_best;
  settings.saves_sharded = config.checkpoint.state_dict_type == "sharded";
  settings.recompute_blocks = config.optimization.gradient_checkpointing == "block";
  set_pipeline_from(settings, loaded, schedule_text);
  return settings;
}

}  // namespace llm
