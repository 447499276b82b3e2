#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "src/base/error.h"
#include "src/io/hf_config.h"
#include "src/io/json_file.h"

namespace llm {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t max_count = (1ULL << 31) - 1;

/// The keys of a config.json by type; what is absent or null has the default.
class Keys {
 public:
  Keys(std::string file, Json json) : file_(std::move(file)), json_(std::move(json)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const {
    throw DataError(fmt::format("{}: {}: {}", file_, key, problem));
  }
  const Json* find(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  /// 1 to max_count.
  std::int64_t count(const std::string& key, std::int64_t usual) const {
    const Json* const value = find(key);
    if (value == nullptr) return usual;
    if (!value->is_number_unsigned() || *value == 0 || value->get<std::uint64_t>() > max_count) {
      refuse(key, fmt::format("{} is not an integer, 1 to {}", value->dump(), max_count));
    }
    return value->get<std::int64_t>();
  }
  double number(const std::string& key, double usual) const {
    const Json* const value = find(key);
    if (value == nullptr) return usual;
    if (!value->is_number()) refuse(key, value->dump() + " is not a number");
    return value->get<double>();
  }
  bool flag(const std::string& key, bool usual) const {
    const Json* const value = find(key);
    if (value == nullptr) return usual;
    if (!value->is_boolean()) refuse(key, value->dump() + " is not true or false");
    return value->get<bool>();
  }
  std::string text(const std::string& key, const std::string& usual) const {
    const Json* const value = find(key);
    if (value == nullptr) return usual;
    if (!value->is_string()) refuse(key, value->dump() + " is not a text");
    return value->get<std::string>();
  }
  /// An id or a list of them.
  std::vector<std::int64_t> ids(const std::string& key) const {
    const Json* const value = find(key);
    if (value == nullptr) return {};
    std::vector<std::int64_t> ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
      const bool is_id = id.is_number_integer() &&
                         (!id.is_number_unsigned() || id.get<std::uint64_t>() <= max_count);
      if (!is_id) refuse(key, value->dump() + " is not an id or a list of ids");
      // Some configurations write -1 for none.
      if (id >= 0) ids.push_back(id.get<std::int64_t>());
    }
    return ids;
  }
  /// Refuses any other value of `key`: it would change the model's formulas.
  void require(const std::string& key, const Json& computed) const {
    const Json* const value = find(key);
    if (value == nullptr || *value == computed) return;
    refuse(key, fmt::format("{} is not in this version, which computes {} alone", value->dump(),
                            computed.dump()));
  }
  Keys inside(const std::string& key) const {
    const Json* const value = find(key);
    if (!value->is_object()) refuse(key, value->dump() + " is not an object");
    return Keys(file_ + ": " + key, *value);
  }

 private:
  std::string file_;
  Json json_;
};

Activation activation_of(const Keys& keys, const std::string& key, const char* usual) {
  const std::string name = keys.text(key, usual);
  constexpr std::pair<const char*, Activation> known[] = {
      {"gelu", Activation::gelu},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"silu", Activation::silu},
      {"swish", Activation::silu},
      {"relu", Activation::relu}};
  std::string names;
  for (const auto& [hf, activation] : known) {
    if (name == hf) return activation;
    names += std::string(names.empty() ? "" : ", ") + hf;
  }
  keys.refuse(key, fmt::format("{} is not one of {}", Json(name).dump(), names));
}

/// The base of the rotation. Before rope_parameters it stood in rope_theta, and what was scaled in
/// rope_scaling.
double rope_theta(const Keys& keys, double usual) {
  double theta = keys.number("rope_theta", usual);
  std::string where = keys.find("rope_theta") != nullptr ? "rope_theta" : "";
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (keys.find(key) == nullptr) continue;
    const Keys rope = keys.inside(key);
    rope.require("rope_type", "default");
    rope.require("type", "default");
    rope.require("partial_rotary_factor", 1.0);
    for (const char* layers : {"full_attention", "sliding_attention"}) {
      if (rope.find(layers) != nullptr) rope.refuse(layers, "all layers have one rotation here");
    }
    if (rope.find("rope_theta") == nullptr) continue;
    const double inside = rope.number("rope_theta", usual);
    if (!where.empty() && inside != theta) {
      rope.refuse("rope_theta",
                  fmt::format("{} contradicts {} of {}; make them equal", inside, theta, where));
    }
    theta = inside;
    where = key;
  }
  if (!(theta > 0)) keys.refuse("rope_theta", fmt::format("{} is not above 0", theta));
  return theta;
}

float rate(const Keys& keys, const char* key, double usual) {
  const double value = keys.number(key, usual);
  if (!(value >= 0 && value < 1)) keys.refuse(key, fmt::format("{} is not in [0, 1)", value));
  return static_cast<float>(value);
}

float epsilon(const Keys& keys, const char* key, double usual) {
  const double value = keys.number(key, usual);
  if (!(value > 0 && value < 1)) keys.refuse(key, fmt::format("{} is not in (0, 1)", value));
  return static_cast<float>(value);
}

HfConfig read_gpt2(const Keys& keys) {
  HfConfig config;
  ModelConfig& model = config.model;
  model.vocab_size = keys.count("vocab_size", 50257);
  model.max_seq_len = keys.count("n_positions", 1024);
  model.hidden_size = keys.count("n_embd", 768);
  model.n_layers = keys.count("n_layer", 12);
  model.n_heads = model.n_kv_heads = keys.count("n_head", 12);
  model.intermediate_size = keys.count("n_inner", 4 * model.hidden_size);
  model.activation = activation_of(keys, "activation_function", "gelu_new");
  model.norm_epsilon = epsilon(keys, "layer_norm_epsilon", 1e-5);
  model.tie_embeddings = keys.flag("tie_word_embeddings", true);
  const float residual = rate(keys, "resid_pdrop", 0.1);
  const float embedding = rate(keys, "embd_pdrop", 0.1);
  const float attention = rate(keys, "attn_pdrop", 0.1);
  model.dropout = residual;
  if (residual != embedding || residual != attention) {
    config.uneven_dropout = fmt::format("resid_pdrop {}, embd_pdrop {} and attn_pdrop {}", residual,
                                        embedding, attention);
  }
  keys.require("scale_attn_weights", true);
  keys.require("scale_attn_by_inverse_layer_idx", false);
  keys.require("add_cross_attention", false);
  return config;
}

/// What Llama and Mixtral have in common.
struct LlamaDefaults {
  std::int64_t intermediate_size;
  std::int64_t n_kv_heads;  ///< 0: as many as heads
  std::int64_t max_seq_len;
  double norm_epsilon;
  double rope_theta;
};

HfConfig read_llama(const Keys& keys, const LlamaDefaults& usual) {
  HfConfig config;
  ModelConfig& model = config.model;
  model.norm = Norm::rms_norm;
  model.positions = Positions::rotary;
  model.gated = true;
  model.vocab_size = keys.count("vocab_size", 32000);
  model.max_seq_len = keys.count("max_position_embeddings", usual.max_seq_len);
  model.hidden_size = keys.count("hidden_size", 4096);
  model.intermediate_size = keys.count("intermediate_size", usual.intermediate_size);
  model.n_layers = keys.count("num_hidden_layers", 32);
  model.n_heads = keys.count("num_attention_heads", 32);
  model.n_kv_heads =
      keys.count("num_key_value_heads", usual.n_kv_heads > 0 ? usual.n_kv_heads : model.n_heads);
  model.activation = activation_of(keys, "hidden_act", "silu");
  model.norm_epsilon = epsilon(keys, "rms_norm_eps", usual.norm_epsilon);
  model.rope_theta = static_cast<float>(rope_theta(keys, usual.rope_theta));
  model.tie_embeddings = keys.flag("tie_word_embeddings", false);
  model.qkv_bias = keys.flag("attention_bias", false);
  model.mlp_bias = keys.flag("mlp_bias", false);
  model.dropout = 0;
  if (const float dropout = rate(keys, "attention_dropout", 0); dropout != 0) {
    config.uneven_dropout = fmt::format("attention_dropout {} and no other", dropout);
  }
  const std::int64_t head_dim = keys.count("head_dim", model.hidden_size / model.n_heads);
  if (head_dim * model.n_heads != model.hidden_size) {
    keys.refuse("head_dim",
                fmt::format("{} x num_attention_heads {} is not hidden_size {}, and heads of "
                            "another size are not in this version",
                            head_dim, model.n_heads, model.hidden_size));
  }
  if (keys.find("sliding_window") != nullptr) {
    const std::int64_t window = keys.count("sliding_window", 1);
    if (window < model.max_seq_len) {
      keys.refuse("sliding_window",
                  fmt::format("{} is less than max_position_embeddings {}, and attention sees all "
                              "tokens here; write max_position_embeddings {} for shorter texts",
                              window, model.max_seq_len, window));
    }
  }
  keys.require("partial_rotary_factor", 1.0);
  return config;
}

HfConfig read_mixtral(const Keys& keys) {
  HfConfig config = read_llama(keys, {.intermediate_size = 14336,
                                      .n_kv_heads = 8,
                                      .max_seq_len = 131072,
                                      .norm_epsilon = 1e-5,
                                      .rope_theta = 1e6});
  ModelConfig& model = config.model;
  keys.require("attention_bias", false);
  keys.require("mlp_bias", false);
  model.n_experts = keys.count("num_local_experts", 8);
  model.top_k = keys.count("num_experts_per_tok", 2);
  model.router_weights.balance = static_cast<float>(keys.number("router_aux_loss_coef", 0.001));
  keys.require("router_jitter_noise", 0.0);
  return config;
}

void check_architectures(const Keys& keys, std::initializer_list<std::string> known) {
  const Json* const names = keys.find("architectures");
  if (names == nullptr) return;
  bool is_known = names->is_array();
  for (const Json& name : *names) {
    is_known = is_known && name.is_string() &&
               std::count(known.begin(), known.end(), name.get<std::string>()) > 0;
  }
  if (is_known) return;
  keys.refuse("architectures",
              fmt::format("{} is not in this version; of this model_type it has {}", names->dump(),
                          fmt::join(known, " and ")));
}

HfConfig read_model(const Keys& keys) {
  const std::string type = keys.text("model_type", "");
  if (type == "gpt2") {
    check_architectures(keys, {"GPT2LMHeadModel", "GPT2Model"});
    return read_gpt2(keys);
  }
  if (type == "llama") {
    check_architectures(keys, {"LlamaForCausalLM", "LlamaModel"});
    return read_llama(keys, {.intermediate_size = 11008,
                             .n_kv_heads = 0,
                             .max_seq_len = 2048,
                             .norm_epsilon = 1e-6,
                             .rope_theta = 1e4});
  }
  if (type == "mixtral") {
    check_architectures(keys, {"MixtralForCausalLM", "MixtralModel"});
    return read_mixtral(keys);
  }
  keys.refuse("model_type", fmt::format("{} is not one of gpt2, llama, mixtral",
                                        type.empty() ? "nothing" : Json(type).dump()));
}

}  // namespace

HfConfig read_hf_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const Keys keys(path.string(), read_json_object(path));
  if (keys.find("quantization_config") != nullptr) {
    keys.refuse("quantization_config", "quantized weights are not read; use the model as it was");
  }
  HfConfig config = read_model(keys);
  config.ids = {keys.ids("bos_token_id"), keys.ids("eos_token_id")};
  try {
    check(config.model);
  } catch (const ConfigError& error) {
    throw DataError(fmt::format("{}: as fields of this program, {}", path.string(), error.what()));
  }
  return config;
}

}  // namespace llm
