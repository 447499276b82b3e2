#include "src/io/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/error.h"

namespace llm {
namespace {

std::int64_t width_of(const Shape& shape) {
  return shape.n_dims() == 2 ? shape[1] : 1;
}

std::int64_t n_elements(const HfPiece& piece) {
  std::int64_t n = 1;
  for (const std::int64_t extent : piece.shape) n *= extent;
  return n;
}

/// out (columns, rows) = x (rows, columns) transposed, in squares that stay in the first cache.
void transpose(const float* x, std::int64_t n_rows, std::int64_t n_columns, float* out) {
  constexpr std::int64_t side = 32;
  for (std::int64_t row = 0; row < n_rows; row += side) {
    for (std::int64_t column = 0; column < n_columns; column += side) {
      for (std::int64_t r = row; r < std::min(row + side, n_rows); ++r) {
        for (std::int64_t c = column; c < std::min(column + side, n_columns); ++c) {
          out[c * n_rows + r] = x[r * n_columns + c];
        }
      }
    }
  }
}

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

void to_logical(const HfPiece& piece, View internal, MutView logical) {
  const std::int64_t width = width_of(internal.shape());
  const float* rows = internal.as<float>() + piece.rows.begin * width;
  CHECK_CONTRACT(logical.n_elements() == piece.rows.size() * width, "a piece is copied whole");
  if (piece.transposed) {
    transpose(rows, piece.rows.size(), width, logical.as<float>());
  } else {
    std::copy_n(rows, logical.n_elements(), logical.as<float>());
  }
}

void from_logical(const HfPiece& piece, View logical, MutView internal) {
  const std::int64_t width = width_of(internal.shape());
  float* rows = internal.as<float>() + piece.rows.begin * width;
  CHECK_CONTRACT(logical.n_elements() == piece.rows.size() * width, "a piece is copied whole");
  if (piece.transposed) {
    transpose(logical.as<float>(), width, piece.rows.size(), rows);
  } else {
    std::copy_n(logical.as<float>(), logical.n_elements(), rows);
  }
}

void write_hf_weights(const std::filesystem::path& folder,
                      const std::vector<ParameterSpec>& parameters, std::span<const View> values) {
  CHECK_CONTRACT(values.size() == parameters.size(), "each parameter has its values");
  write_hf_weights(folder, parameters, [&values](std::size_t i) { return values[i]; });
}

void write_hf_weights(const std::filesystem::path& folder,
                      const std::vector<ParameterSpec>& parameters,
                      const std::function<View(std::size_t)>& value_of) {
  std::vector<SafetensorsOutput> outputs;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const HfPiece& piece : parameters[i].pieces) {
      outputs.push_back(
          {piece.name, Dtype::f32, piece.shape, [&piece, &value_of, i](std::span<std::byte> bytes) {
             to_logical(piece, value_of(i), MutView(bytes.data(), Dtype::f32, {n_elements(piece)}));
           }});
    }
  }
  write_safetensors(folder / "model.safetensors", std::move(outputs));
}

void read_hf_weights(const std::filesystem::path& path,
                     const std::vector<ParameterSpec>& parameters,
                     std::span<const MutView> values) {
  CHECK_CONTRACT(values.size() == parameters.size(), "each parameter has its values");
  const SafetensorsFile file(path);
  std::set<std::string> known;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const HfPiece& piece : parameters[i].pieces) {
      known.insert(piece.name);
      const SafetensorsEntry& entry = file.find(piece.name);
      if (entry.shape != piece.shape) {
        throw DataError(fmt::format("{}: tensor \"{}\" has the shape ({}), the model needs ({})",
                                    path.string(), piece.name, fmt::join(entry.shape, ", "),
                                    fmt::join(piece.shape, ", ")));
      }
      const std::vector<float> logical = file.read_f32(piece.name);
      from_logical(piece, View(logical.data(), {n_elements(piece)}), values[i]);
    }
  }
  for (const SafetensorsEntry& entry : file.tensors()) {
    if (!known.contains(entry.name)) {
      throw DataError(fmt::format("{}: tensor \"{}\" belongs to no parameter of the model",
                                  path.string(), entry.name));
    }
  }
}

std::optional<std::string> hf_config_json(const ModelConfig& config) {
  if (is_gpt2(config)) return gpt2_config(config).dump(2) + "\n";
  if (is_llama(config) && config.is_mixture()) return mixtral_config(config).dump(2) + "\n";
  if (is_llama(config)) return llama_config(config).dump(2) + "\n";
  return std::nullopt;
}

}  // namespace llm
