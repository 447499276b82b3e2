#include "src/io/hf_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/model/parameters.h"

namespace llm {
namespace {

bool is_gpt2(const ModelConfig& config) {
  return has_gpt2_names(config) && config.positions == Positions::learned && config.qkv_bias &&
         config.mlp_bias && !config.lm_head_bias && !config.is_mixture();
}

/// With or without a mixture: Mixtral is a Llama with experts and without biases.
bool is_llama(const ModelConfig& config) {
  if (config.is_mixture() && (config.qkv_bias || config.mlp_bias)) return false;
  return config.norm == Norm::rms_norm && config.positions == Positions::rotary && config.gated &&
         !config.lm_head_bias;
}

const char* hf_activation(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_new";
    case Activation::silu:
      return "silu";
    case Activation::relu:
      return "relu";
  }
  return "?";
}

/// The shortest decimal that gives the same float, so that 0.1f is written as 0.1.
double decimal(float value) {
  return std::stod(fmt::format("{}", value));
}

/// null, one id, or several in a list.
nlohmann::ordered_json ids_of(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

/// Where a model's configuration class has ids of its own by default, null says that there are
/// none.
void add_ids(nlohmann::ordered_json& json, const HfTokenIds& ids) {
  json["bos_token_id"] = ids_of(ids.begin);
  json["eos_token_id"] = ids_of(ids.end);
}

nlohmann::ordered_json gpt2_config(const ModelConfig& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", config.vocab_size},
          {"n_positions", config.max_seq_len},
          {"n_embd", config.hidden_size},
          {"n_layer", config.n_layers},
          {"n_head", config.n_heads},
          {"n_inner", config.intermediate_size},
          {"activation_function", hf_activation(config.activation)},
          {"layer_norm_epsilon", decimal(config.norm_epsilon)},
          {"resid_pdrop", decimal(config.dropout)},
          {"embd_pdrop", decimal(config.dropout)},
          {"attn_pdrop", decimal(config.dropout)},
          {"initializer_range", 0.02},
          {"tie_word_embeddings", config.tie_embeddings},
          {"torch_dtype", "float32"}};
}

nlohmann::ordered_json llama_config(const ModelConfig& config) {
  const double theta = decimal(config.rope_theta);
  return {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_seq_len},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.n_layers},
      {"num_attention_heads", config.n_heads},
      {"num_key_value_heads", config.n_kv_heads},
      {"head_dim", config.head_dim()},
      {"hidden_act", config.activation == Activation::gelu_tanh ? "gelu_pytorch_tanh"
                                                                : hf_activation(config.activation)},
      {"rms_norm_eps", decimal(config.norm_epsilon)},
      {"attention_bias", config.qkv_bias},
      {"mlp_bias", config.mlp_bias},
      {"initializer_range", 0.02},
      {"tie_word_embeddings", config.tie_embeddings},
      // Older and newer readers know one spelling of the rotation each.
      {"rope_theta", theta},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", theta}}},
      {"torch_dtype", "float32"}};
}

nlohmann::ordered_json mixtral_config(const ModelConfig& config) {
  nlohmann::ordered_json json = llama_config(config);
  json["architectures"] = {"MixtralForCausalLM"};
  json["model_type"] = "mixtral";
  json.erase("attention_bias");
  json.erase("mlp_bias");
  json["num_local_experts"] = config.n_experts;
  json["num_experts_per_tok"] = config.top_k;
  json["router_aux_loss_coef"] = decimal(config.router_weights.balance);
  json["output_router_logits"] = false;
  json["sliding_window"] = nullptr;
  return json;
}

}  // namespace

std::optional<std::string> hf_config_json(const ModelConfig& config, const HfTokenIds& ids) {
  nlohmann::ordered_json json;
  if (is_gpt2(config)) {
    json = gpt2_config(config);
  } else if (is_llama(config)) {
    json = config.is_mixture() ? mixtral_config(config) : llama_config(config);
  } else {
    return std::nullopt;
  }
  add_ids(json, ids);
  return json.dump(2) + "\n";
}

std::string hf_generation_config_json(const HfTokenIds& ids) {
  nlohmann::ordered_json json = {{"_from_model_config", true}};
  add_ids(json, ids);
  return json.dump(2) + "\n";
}

}  // namespace llm
