#include "src/train/init_from.h"

#include <fmt/format.h>

#include <memory>

#include "src/io/hf_folder.h"

namespace llm {
namespace {

/// The shortest decimal of an f32, as people write it.
double decimal(float value) {
  return std::stod(fmt::format("{}", value));
}

std::string name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::relu:
      return "relu";
  }
  return "?";
}

}  // namespace

std::vector<FolderField> fields_of_folder(const std::string& folder) {
  using Binding = FolderField::Binding;
  const HfConfig config = read_hf_config(folder);
  const ModelConfig& model = config.model;
  const bool is_rotary = model.positions == Positions::rotary;
  const bool is_rms = model.norm == Norm::rms_norm;
  std::vector<FolderField> fields = {
      {"hidden_size", model.hidden_size},
      {"num_layers", model.n_layers},
      {"num_heads", model.n_heads},
      {"num_kv_heads", model.n_kv_heads},
      {"intermediate_size", model.intermediate_size},
      {"vocab_size", model.vocab_size},
      {"max_seq_len", model.max_seq_len, is_rotary ? Binding::at_most : Binding::equal},
      {"norm_impl", std::string(is_rms ? "rms_norm" : "layer_norm")},
      {"norm_eps", decimal(model.norm_epsilon)},
      {"mlp_activation", name_of(model.activation)},
      {"use_glu", model.gated},
      {"use_rope", is_rotary},
      {"qkv_bias", model.qkv_bias},
      {"mlp_bias", model.mlp_bias},
      {"lm_head_bias", model.lm_head_bias},
      {"tie_embeddings", model.tie_embeddings},
      {"mlp_impl", std::string(model.is_mixture() ? "moe" : "mlp")},
      {"dropout", decimal(model.dropout), Binding::free}};
  if (is_rotary) {
    fields.push_back({"rope_theta", decimal(model.rope_theta)});
  } else {
    fields.push_back({"pos_encoding_learned", model.positions == Positions::learned});
  }
  if (model.is_mixture()) {
    fields.push_back({"num_experts", model.n_experts});
    fields.push_back({"top_k", model.top_k});
    fields.push_back(
        {"router_aux_loss_coef", decimal(model.router_weights.balance), Binding::free});
  }
  for (FolderField& field : fields) {
    if (field.name != "dropout" || config.uneven_dropout.empty()) continue;
    field.problem = fmt::format(
        "the folder's config.json has {}, here one rate holds for all; "
        "write model.dropout",
        config.uneven_dropout);
  }
  return fields;
}

FolderValues values_of_folder(const std::string& folder, const ModelConfig& model,
                              bool checks_contents) {
  const auto weights = std::make_shared<const HfWeights>(folder, model);
  if (checks_contents) weights->check_tied_head();
  return {.values = [weights](const ParameterSpec& parameter, Range elements,
                              MutView values) { weights->read(parameter, elements, values); },
          .summary = fmt::format("weights: {}, {}", folder, weights->summary())};
}

}  // namespace llm
