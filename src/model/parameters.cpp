#include "src/model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/model/tensor_slice.h"

namespace llm {
namespace {

/// What Llama and GPT-2 both call initializer_range.
constexpr float initializer_range = 0.02f;

/// Collects the specs of one model in canonical order.
class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : config_(config), gpt2_(has_gpt2_names(config)) {}

  void add_embedding();
  void add_block(std::int64_t layer);
  void add_head();
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  struct Names {
    std::string own;
    std::string hf;
  };
  ParameterSpec& add(Role role, const Names& names, Shape shape, Init init) {
    ParameterSpec spec;
    spec.name = names.own;
    spec.shape = shape;
    spec.layer = layer_;
    spec.role = role;
    spec.decay = shape.n_dims() == 1 ? DecayGroup::vector : DecayGroup::matrix;
    spec.init = init;
    HfPiece piece{names.hf, {}, {0, shape[0]}, false};
    for (int dim = 0; dim < shape.n_dims(); ++dim) piece.shape.push_back(shape[dim]);
    spec.pieces.push_back(std::move(piece));
    specs_.push_back(std::move(spec));
    return specs_.back();
  }
  /// A (out, in) matrix and, where asked, its bias (whose role follows the matrix's).
  void add_linear(Role weight, const Names& names, Shape shape, float deviation, bool has_bias);
  void add_norm(Role weight, const Names& names);
  /// Cuts the one piece of the fused q, k, v into Llama's three.
  void split_qkv(ParameterSpec& spec, const std::string& prefix, const char* what);
  void add_mlp(float residual_deviation);
  /// A linear layer of every expert, in one tensor, with a piece for each.
  void add_experts(Role weight, const char* own, const char* gpt2, const char* mixtral, Shape shape,
                   float deviation);
  std::string own_name(const char* what) const { return fmt::format("blocks.{}.{}", layer_, what); }
  std::string hf_name(const char* gpt2, const char* llama) const {
    return gpt2_ ? fmt::format("h.{}.{}", layer_, gpt2)
                 : fmt::format("model.layers.{}.{}", layer_, llama);
  }

  const ModelConfig& config_;
  const bool gpt2_;
  std::int64_t layer_ = embedding_layer;
  std::vector<ParameterSpec> specs_;
};

Role next(Role role) {
  return static_cast<Role>(static_cast<int>(role) + 1);
}

void SpecList::add_linear(Role weight, const Names& names, Shape shape, float deviation,
                          bool has_bias) {
  ParameterSpec& matrix =
      add(weight, {names.own + ".weight", names.hf + ".weight"}, shape, {deviation, 0});
  const bool is_block = layer_ != embedding_layer && layer_ != head_layer(config_);
  if (gpt2_ && is_block) {
    matrix.pieces[0].transposed = true;
    std::swap(matrix.pieces[0].shape[0], matrix.pieces[0].shape[1]);
  }
  if (has_bias) add(next(weight), {names.own + ".bias", names.hf + ".bias"}, {shape[0]}, {});
}

void SpecList::add_norm(Role weight, const Names& names) {
  const Shape shape{config_.hidden_size};
  add(weight, {names.own + ".weight", names.hf + ".weight"}, shape, {0, 1});
  if (config_.norm == Norm::layer_norm) {
    add(next(weight), {names.own + ".bias", names.hf + ".bias"}, shape, {});
  }
}

void SpecList::split_qkv(ParameterSpec& spec, const std::string& prefix, const char* what) {
  const std::int64_t n_rows[] = {config_.n_heads * config_.head_dim(),
                                 config_.n_kv_heads * config_.head_dim(),
                                 config_.n_kv_heads * config_.head_dim()};
  const HfPiece whole = spec.pieces[0];
  spec.pieces.clear();
  std::int64_t begin = 0;
  for (int i = 0; i < 3; ++i) {
    HfPiece piece = whole;
    piece.name = fmt::format("{}.{}_proj.{}", prefix, "qkv"[i], what);
    piece.shape[0] = n_rows[i];
    piece.rows = {begin, begin + n_rows[i]};
    begin = piece.rows.end;
    spec.pieces.push_back(std::move(piece));
  }
}

void SpecList::add_embedding() {
  layer_ = embedding_layer;
  const char* tokens = gpt2_ ? "wte.weight" : "model.embed_tokens.weight";
  add(Role::token_embedding, {"embedding.tokens", tokens},
      {config_.vocab_size, config_.hidden_size}, {initializer_range, 0})
      .decay = DecayGroup::embedding;
  if (config_.positions == Positions::learned) {
    const char* positions = gpt2_ ? "wpe.weight" : "model.embed_positions.weight";
    add(Role::position_embedding, {"embedding.positions", positions},
        {config_.max_seq_len, config_.hidden_size}, {initializer_range, 0})
        .decay = DecayGroup::embedding;
  }
}

void SpecList::add_block(std::int64_t layer) {
  layer_ = layer;
  const std::int64_t c = config_.hidden_size;
  // GPT-2 keeps the residual stream's deviation independent of depth; Llama as Hugging Face starts
  // it does not.
  const float residual_deviation =
      gpt2_ ? initializer_range / std::sqrt(2.0f * static_cast<float>(config_.n_layers))
            : initializer_range;
  add_norm(Role::norm1_weight, {own_name("norm1"), hf_name("ln_1", "input_layernorm")});
  const std::size_t qkv = specs_.size();
  add_linear(Role::qkv_weight, {own_name("qkv"), hf_name("attn.c_attn", "self_attn")},
             {(config_.n_heads + 2 * config_.n_kv_heads) * config_.head_dim(), c},
             initializer_range, config_.qkv_bias);
  if (!gpt2_) {
    const std::string prefix = hf_name("", "self_attn");
    split_qkv(specs_[qkv], prefix, "weight");
    if (config_.qkv_bias) split_qkv(specs_[qkv + 1], prefix, "bias");
  }
  add_linear(Role::attention_out_weight,
             {own_name("attention_out"), hf_name("attn.c_proj", "self_attn.o_proj")}, {c, c},
             residual_deviation, config_.qkv_bias);
  add_norm(Role::norm2_weight, {own_name("norm2"), hf_name("ln_2", "post_attention_layernorm")});
  add_mlp(residual_deviation);
}

void SpecList::add_mlp(float residual_deviation) {
  const std::int64_t c = config_.hidden_size;
  const std::int64_t f = config_.intermediate_size;
  if (config_.is_mixture()) {
    add_linear(Role::router_weight,
               {own_name("router"), hf_name("mlp.gate", "block_sparse_moe.gate")},
               {config_.n_experts, c}, initializer_range, false);
    if (config_.gated) {
      add_experts(Role::gate_weight, "gate", "", "w1", {f, c}, initializer_range);
    }
    add_experts(Role::up_weight, "up", "c_fc", "w3", {f, c}, initializer_range);
    add_experts(Role::down_weight, "down", "c_proj", "w2", {c, f}, residual_deviation);
    return;
  }
  if (config_.gated) {
    add_linear(Role::gate_weight, {own_name("gate"), hf_name("", "mlp.gate_proj")}, {f, c},
               initializer_range, config_.mlp_bias);
  }
  add_linear(Role::up_weight, {own_name("up"), hf_name("mlp.c_fc", "mlp.up_proj")}, {f, c},
             initializer_range, config_.mlp_bias);
  add_linear(Role::down_weight, {own_name("down"), hf_name("mlp.c_proj", "mlp.down_proj")}, {c, f},
             residual_deviation, config_.mlp_bias);
}

void SpecList::add_experts(Role weight, const char* own, const char* gpt2, const char* mixtral,
                           Shape shape, float deviation) {
  const std::size_t first = specs_.size();
  const Shape all = {config_.n_experts * shape[0], shape[1]};
  add_linear(weight, {own_name(own), ""}, all, deviation, config_.mlp_bias);
  for (std::size_t i = first; i < specs_.size(); ++i) {
    const HfPiece whole = specs_[i].pieces[0];
    specs_[i].pieces.clear();
    for (std::int64_t e = 0; e < config_.n_experts; ++e) {
      HfPiece piece = whole;  // its name is ".weight" or ".bias"
      piece.name = hf_name(fmt::format("mlp.experts.{}.{}", e, gpt2).c_str(),
                           fmt::format("block_sparse_moe.experts.{}.{}", e, mixtral).c_str()) +
                   whole.name;
      piece.shape[piece.transposed ? 1 : 0] = shape[0];
      piece.rows = {e * shape[0], (e + 1) * shape[0]};
      specs_[i].pieces.push_back(std::move(piece));
    }
  }
}

void SpecList::add_head() {
  layer_ = head_layer(config_);
  add_norm(Role::final_norm_weight, {"final_norm", gpt2_ ? "ln_f" : "model.norm"});
  const Shape shape{config_.vocab_size, config_.hidden_size};
  if (!config_.tie_embeddings) {
    add_linear(Role::head_weight, {"head", "lm_head"}, shape, initializer_range,
               config_.lm_head_bias);
  } else if (config_.lm_head_bias) {
    add(Role::head_bias, {"head.bias", "lm_head.bias"}, {config_.vocab_size}, {});
  }
}

}  // namespace

bool has_gpt2_names(const ModelConfig& config) {
  return config.norm == Norm::layer_norm && config.positions != Positions::rotary &&
         !config.gated && config.n_kv_heads == config.n_heads;
}

bool is_of_experts(const ModelConfig& config, Role role) {
  return config.is_mixture() && Role::gate_weight <= role && role <= Role::down_bias;
}

std::vector<ParameterSpec> parameters(const ModelConfig& config) {
  check(config);
  SpecList specs(config);
  specs.add_embedding();
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) specs.add_block(layer);
  specs.add_head();
  std::vector<ParameterSpec> all = specs.take();
  for (ParameterSpec& spec : all) take_slice(config, spec);
  return all;
}

bool has_layer(const LayerRanges& ranges, std::int64_t layer) {
  return std::any_of(ranges.begin(), ranges.end(), [layer](const Range& range) {
    return range.begin <= layer && layer < range.end;
  });
}

std::vector<std::size_t> owned_parameters(const ModelConfig& config, const LayerRanges& ranges) {
  const std::vector<ParameterSpec> specs = parameters(config);
  std::vector<std::size_t> owned;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool is_tied = config.tie_embeddings && specs[i].role == Role::token_embedding;
    if (has_layer(ranges, is_tied ? head_layer(config) : specs[i].layer)) owned.push_back(i);
  }
  return owned;
}

bool borrows_embedding(const ModelConfig& config, const LayerRanges& ranges) {
  return config.tie_embeddings && has_layer(ranges, embedding_layer) &&
         !has_layer(ranges, head_layer(config));
}

std::vector<ParameterUse> parameter_uses(const ModelConfig& config) {
  const std::vector<ParameterSpec> specs = parameters(config);
  std::vector<ParameterUse> uses;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (config.tie_embeddings && specs[i].role == Role::head_bias) {
      uses.push_back({0, head_layer(config), Role::head_weight});
    }
    uses.push_back({i, specs[i].layer, specs[i].role});
  }
  if (config.tie_embeddings && !config.lm_head_bias) {
    uses.push_back({0, head_layer(config), Role::head_weight});
  }
  return uses;
}

Values layer_values(const std::vector<ParameterUse>& uses, std::int64_t layer,
                    std::span<const View> by_parameter) {
  Values values;
  for (const ParameterUse& use : uses) {
    if (use.layer == layer) values[use.role] = by_parameter[use.parameter];
  }
  return values;
}

Gradients layer_gradients(const std::vector<ParameterUse>& uses, std::int64_t layer,
                          std::span<const MutView> by_use) {
  CHECK_CONTRACT(by_use.size() == uses.size(), "each use of a parameter has its accumulator");
  Gradients gradients;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].layer == layer) gradients[uses[i].role] = by_use[i];
  }
  return gradients;
}

std::int64_t n_parameters(const ModelConfig& config) {
  std::int64_t n = 0;
  for (const ParameterSpec& spec : parameters(config)) n += spec.n_elements();
  return n;
}

}  // namespace llm
