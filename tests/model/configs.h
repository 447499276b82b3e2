#pragma once
#include <string>
#include <utility>
#include <vector>

#include "src/model/model_config.h"

namespace llm {

/// Models small enough for every test, of both families and of mixtures of them.
inline ModelConfig tiny_gpt2() {
  return {.hidden_size = 16,
          .n_layers = 2,
          .n_heads = 4,
          .n_kv_heads = 4,
          .intermediate_size = 40,
          .vocab_size = 29,
          .max_seq_len = 12,
          .dropout = 0};
}

inline ModelConfig tiny_llama() {
  ModelConfig config = tiny_gpt2();
  config.norm = Norm::rms_norm;
  config.positions = Positions::rotary;
  config.activation = Activation::silu;
  config.gated = true;
  config.n_kv_heads = 2;
  config.qkv_bias = config.mlp_bias = false;
  config.tie_embeddings = false;
  return config;
}

/// A mixture of experts in either family: Mixtral is a Llama's.
inline ModelConfig with_experts(ModelConfig config, std::int64_t n_experts, std::int64_t top_k) {
  config.n_experts = n_experts;
  config.top_k = top_k;
  config.intermediate_size = 24;
  config.router_weights = {.balance = 0.5f, .z = 0.25f};
  return config;
}

inline std::vector<std::pair<std::string, ModelConfig>> test_configs() {
  std::vector<std::pair<std::string, ModelConfig>> configs{
      {"gpt2", tiny_gpt2()},
      {"llama", tiny_llama()},
      {"mixtral", with_experts(tiny_llama(), 4, 2)}};
  const auto add = [&](const std::string& name, ModelConfig config) {
    config.dropout = 0.25f;
    configs.emplace_back(name, config);
  };
  ModelConfig config = tiny_gpt2();
  add("gpt2 with dropout", config);
  config.tie_embeddings = false;
  config.lm_head_bias = true;
  config.positions = Positions::sinusoidal;
  config.activation = Activation::gelu;
  add("gpt2, sinusoidal, head apart with bias", config);
  config.qkv_bias = config.mlp_bias = false;
  config.activation = Activation::relu;
  add("gpt2 without biases", config);
  config = tiny_llama();
  config.qkv_bias = config.mlp_bias = config.lm_head_bias = true;
  config.tie_embeddings = true;
  add("llama with biases, tied", config);
  config = tiny_llama();
  config.norm = Norm::layer_norm;
  config.positions = Positions::learned;
  config.gated = false;
  config.n_kv_heads = 1;
  add("one key head, learned positions, ungated", config);
  add("a mixture of GPT-2's mlps", with_experts(tiny_gpt2(), 3, 2));
  config = with_experts(tiny_llama(), 5, 1);
  config.qkv_bias = config.mlp_bias = true;
  add("one expert a token, gated with biases", config);
  return configs;
}

}  // namespace llm
