#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llm {

/// The configuration as plain values, one struct a section, one member a field, named as in YAML.
/// What each field means, its range and what works is declared in the table (config/table.h),
/// printed by `llm-train --explain section.field` and in configs/README.md. The initializers here
/// are the defaults. A member that is optional stands for a field that may be null. Filled by
/// load_config() only, which checks every rule: who holds a Config need not check again.

struct ModelSection {
  std::int64_t hidden_size = 512;
  std::int64_t num_heads = 8;
  std::optional<std::int64_t> num_kv_heads;
  std::optional<std::int64_t> intermediate_size;
  std::int64_t num_layers = 2;
  double dropout = 0.1;
  bool use_glu = false;
  std::string mlp_impl = "mlp";  ///< mlp, moe
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  double router_aux_loss_coef = 0.01;
  double router_z_loss_coef = 0.001;
  std::int64_t vocab_size = 50257;
  std::int64_t max_seq_len = 512;
  std::string norm_impl = "layer_norm";  ///< layer_norm, rms_norm
  double norm_eps = 1e-5;
  bool pos_encoding_learned = false;
  std::string mlp_activation = "gelu";  ///< gelu, gelu_tanh, silu, relu (swish is read as silu)
  bool qkv_bias = true;
  bool mlp_bias = true;
  bool lm_head_bias = true;
  bool use_rope = false;
  double rope_theta = 10000;
  bool tie_embeddings = false;
  std::optional<std::string> init_from;

  std::int64_t n_kv_heads() const { return num_kv_heads.value_or(num_heads); }
  std::int64_t mlp_size() const { return intermediate_size.value_or(4 * hidden_size); }
  std::int64_t head_size() const { return hidden_size / num_heads; }
  bool is_mixture() const { return mlp_impl == "moe"; }
  bool operator==(const ModelSection&) const = default;
};

struct TrainingConfig {
  std::int64_t batch_size = 128;  ///< samples a data-parallel rank, accumulation step
  std::optional<std::int64_t> global_batch_size;  ///< samples an optimizer step, all ranks
  std::int64_t epochs = 10;
  std::int64_t max_steps = 0;  ///< 0: no cap
  std::int64_t seed = 42;
  double lr = 1e-3;
  std::string scheduler_type = "cosine";  ///< cosine, linear, constant, wsd
  std::int64_t warmup_steps = 0;
  double min_lr_ratio = 0.1;
  std::optional<std::int64_t> wsd_decay_steps;
  double weight_decay = 0.01;
  bool decay_embeddings = false;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double adam_eps = 1e-8;
  double gradient_clip_val = 1.0;  ///< 0: off
  bool run_validation = true;
  std::int64_t val_interval_steps = 0;  ///< 0: at the end of each epoch
  double val_fraction = 0.1;
  bool operator==(const TrainingConfig&) const = default;
};

struct OptimizationConfig {
  bool use_amp = true;
  std::string amp_dtype = "auto";  ///< auto, float32, bfloat16, float16
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::string gradient_checkpointing = "none";  ///< none, block
  double loss_scale_init = 65536;
  std::int64_t loss_scale_growth_interval = 2000;
  double loss_scale_backoff = 0.5;
  double loss_scale_min = 1;
  bool operator==(const OptimizationConfig&) const = default;
};

struct DataConfig {
  std::string data_source = "local";
  std::string tokenizer_type = "byte";
  std::optional<std::string> tokenizer_path;
  std::vector<std::string> dataset_path;      ///< files or globs; empty: not set
  std::vector<std::string> val_dataset_path;  ///< files or globs; empty: split off dataset_path
  std::string text_column = "text";
  std::optional<std::string> cache_dir;
  std::int64_t max_seq_len = 512;  ///< T, tokens of one sample
  std::optional<std::int64_t> steps_per_epoch;
  bool packing = false;  ///< of --task sft
  bool shuffle = true;
  std::int64_t shuffle_buffer = 4096;  ///< samples
  bool operator==(const DataConfig&) const = default;
};

struct DistributedConfig {
  std::string master_addr = "127.0.0.1";
  std::string master_port = "12355";
  std::int64_t num_nodes = 1;
  std::int64_t node_rank = 0;
  std::optional<std::int64_t> gpus_per_node;
  std::optional<std::string> backend;     ///< mpi, nccl (gloo is read as mpi)
  std::string device = "auto";            ///< auto, cpu, cuda
  std::string collectives = "plan";       ///< plan, nccl
  std::string parallel_strategy = "ddp";  ///< ddp, fsdp, zero, tp, pp, 3d
  std::int64_t tp_size = 0;               ///< 0: all ranks under tp, else 1
  std::int64_t pp_size = 0;               ///< 0: all ranks under pp, else 1
  std::int64_t dp_size = 0;               ///< 0: the ranks that tp and pp leave
  std::optional<std::int64_t> zero_stage;
  std::int64_t bucket_bytes = 4 << 20;
  std::int64_t threads_per_rank = 1;
  std::string expert_parallel = "none";  ///< none, dp
  bool sequence_parallel = false;
  std::int64_t pp_n_microbatches = 1;
  std::string pp_schedule =
      "1f1b";  ///< gpipe, 1f1b, 1f1b_pairs, interleaved, zero_bubble, zero_bubble_v, file:PATH
  std::int64_t pp_virtual_stages = 1;
  std::optional<std::string> pp_split;
  std::string fsdp_mixed_precision = "bf16";  ///< fp32, bf16, fp16
  std::int64_t fsdp_auto_wrap_min_params = 10'000'000;
  bool fsdp_cpu_offload = false;
  std::int64_t fsdp_prefetch_units = 1;
  bool fsdp_reshard_after_forward = true;
  bool cuda_graphs = false;
  double collective_timeout_seconds = 1800;
  bool operator==(const DistributedConfig&) const = default;
};

struct CheckpointConfig {
  std::optional<std::string> checkpoint_dir;
  std::string state_dict_type = "full";  ///< full, sharded
  std::int64_t save_interval_steps = 0;  ///< 0: not during training
  std::optional<std::string> resume_from_checkpoint;
  std::int64_t keep_last_n = 5;
  bool save_best = true;
  bool operator==(const CheckpointConfig&) const = default;
};

struct LoggingConfig {
  std::optional<std::string> run_dir;
  std::string progress = "auto";   ///< auto, line, bar, off
  std::int64_t log_interval = 10;  ///< steps
  bool tensorboard = false;
  bool operator==(const LoggingConfig&) const = default;
};

struct NumericsConfig {
  std::string accumulation = "tree";  ///< tree, sequential
  bool operator==(const NumericsConfig&) const = default;
};

struct Config {
  ModelSection model;
  TrainingConfig training;
  OptimizationConfig optimization;
  DataConfig data;
  DistributedConfig distributed;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  NumericsConfig numerics;
  bool operator==(const Config&) const = default;
};

}  // namespace llm
