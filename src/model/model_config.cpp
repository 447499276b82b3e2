#include "src/model/model_config.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace llm {
namespace {

void check_positive(const char* field, std::int64_t value) {
  if (value < 1) {
    throw ConfigError(fmt::format("model.{}: {} is below 1; use 1 or more", field, value));
  }
}

void check_experts(const ModelConfig& config) {
  if (!config.is_mixture()) {
    if (config.n_experts == 0 && config.top_k == 0) return;
    throw ConfigError(
        fmt::format("model.num_experts: {} with model.top_k {}; use 0 for both, or 1 or more",
                    config.n_experts, config.top_k));
  }
  check_positive("top_k", config.top_k);
  if (config.top_k > config.n_experts) {
    throw ConfigError(fmt::format("model.top_k: {} is more than model.num_experts {}; lower it",
                                  config.top_k, config.n_experts));
  }
}

/// What tensor-parallel ranks cut has to be divisible.
void check_slices(const ModelConfig& config) {
  const std::int64_t size = config.tp.size;
  if (size == 1) return;
  const auto require = [size](const char* field, std::int64_t value) {
    if (value % size == 0) return;
    throw ConfigError(
        fmt::format("distributed.tp_size: {} does not divide model.{} {}; use a divisor of it",
                    size, field, value));
  };
  require("num_heads", config.n_heads);
  if (config.is_mixture()) {
    require("num_experts", config.n_experts);
  } else {
    require("intermediate_size", config.intermediate_size);
  }
  if (config.n_kv_heads % size != 0 && size % config.n_kv_heads != 0) {
    throw ConfigError(fmt::format(
        "distributed.tp_size: {} is neither a divisor nor a multiple of model.num_kv_heads {}, so "
        "that heads would be shared unevenly; use a divisor or a multiple of it",
        size, config.n_kv_heads));
  }
}

void check_expert_ranks(const ModelConfig& config) {
  const std::int64_t size = std::int64_t{config.ep.size} * config.tp.size;
  if (config.ep.size == 1 || !config.is_mixture() || config.n_experts % size == 0) return;
  throw ConfigError(fmt::format(
      "distributed.expert_parallel: dp spreads model.num_experts {} over {} data-parallel x {} "
      "tensor-parallel ranks = {}, which does not divide it; use a multiple of {} experts, or "
      "expert_parallel: none",
      config.n_experts, config.ep.size, config.tp.size, size, size));
}

}  // namespace

void check(const ModelConfig& config) {
  check_positive("hidden_size", config.hidden_size);
  check_positive("num_layers", config.n_layers);
  check_positive("num_heads", config.n_heads);
  check_positive("num_kv_heads", config.n_kv_heads);
  check_positive("intermediate_size", config.intermediate_size);
  check_positive("vocab_size", config.vocab_size);
  check_positive("max_seq_len", config.max_seq_len);
  if (config.hidden_size % config.n_heads != 0) {
    throw ConfigError(fmt::format(
        "model.num_heads: {} does not divide model.hidden_size {}; use a divisor of the width",
        config.n_heads, config.hidden_size));
  }
  if (config.n_heads % config.n_kv_heads != 0) {
    throw ConfigError(fmt::format(
        "model.num_kv_heads: {} does not divide model.num_heads {}; use a divisor of the heads",
        config.n_kv_heads, config.n_heads));
  }
  if (config.positions == Positions::rotary && config.head_dim() % 2 != 0) {
    throw ConfigError(fmt::format(
        "model.use_rope: hidden_size / num_heads is {}, which is odd, and rotary positions turn "
        "pairs; choose num_heads so that it is even",
        config.head_dim()));
  }
  check_experts(config);
  check_slices(config);
  check_expert_ranks(config);
  if (!(config.dropout >= 0.0f && config.dropout < 1.0f)) {
    throw ConfigError(
        fmt::format("model.dropout: {} is not in [0, 1); use 0 for none", config.dropout));
  }
}

double flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
  const auto c = static_cast<double>(config.hidden_size);
  const auto f = static_cast<double>(config.intermediate_size);
  const double attention = static_cast<double>(config.qkv_width()) * c + c * c;
  const double mlp = static_cast<double>(config.n_active_mlps()) * (config.gated ? 3 : 2) * c * f +
                     static_cast<double>(config.n_experts) * c;
  const auto n_layers = static_cast<double>(config.n_layers);
  const double head = static_cast<double>(config.vocab_size) * c;
  return 6 * (n_layers * (attention + mlp) + head) +
         12 * n_layers * c * static_cast<double>(seq_len);
}

}  // namespace llm
