#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/range.h"
#include "src/model/model_config.h"
#include "tensor/view.h"

namespace llm {

/// Layers are numbered from -1: the embedding is -1, blocks are 0 .. n_layers-1, the final norm
/// with the head is n_layers. A stage owns a contiguous range of them.
inline constexpr std::int64_t embedding_layer = -1;
inline std::int64_t head_layer(const ModelConfig& config) {
  return config.n_layers;
}
inline Range all_layers(const ModelConfig& config) {
  return {embedding_layer, head_layer(config) + 1};
}

/// What a parameter is to its layer.
enum class Role : std::uint8_t {
  token_embedding,
  position_embedding,
  norm1_weight,
  norm1_bias,
  qkv_weight,
  qkv_bias,
  attention_out_weight,
  attention_out_bias,
  norm2_weight,
  norm2_bias,
  router_weight,
  gate_weight,
  gate_bias,
  up_weight,
  up_bias,
  down_weight,
  down_bias,
  final_norm_weight,
  final_norm_bias,
  head_weight,
  head_bias,
};
inline constexpr std::size_t n_roles = 21;

/// The parameters of one layer by role; the view of a role that the layer lacks is empty.
template <typename V>
class ParameterViews {
 public:
  V& operator[](Role role) { return views_[static_cast<std::size_t>(role)]; }
  const V& operator[](Role role) const { return views_[static_cast<std::size_t>(role)]; }

 private:
  std::array<V, n_roles> views_;
};
using Values = ParameterViews<View>;
using Gradients = ParameterViews<MutView>;

/// What weight decay applies to: matrices always, embeddings (the tied one too) by configuration,
/// vectors (norms, biases) never.
enum class DecayGroup : std::uint8_t { matrix, embedding, vector };

/// How elements start: normal with mean 0 and this deviation, or (deviation 0) this constant.
struct Init {
  float deviation = 0;
  float constant = 0;
};

/// A logical (Hugging Face) tensor and the rows of the internal tensor that hold it.
struct HfPiece {
  std::string name;
  std::vector<std::int64_t> shape;
  Range rows;               ///< of the internal tensor; elements where that is a vector
  bool transposed = false;  ///< GPT-2's Conv1D: (in, out), where the internal tensor is (out, in)
};

/// The part of a tensor that a tensor-parallel rank has: rows, of which the local ones that no
/// entry names are padding, and columns.
struct Slice {
  struct Rows {
    Range local;
    std::int64_t whole_begin;
  };
  Shape whole_shape;
  Range columns;  ///< of the whole; {0, 1} of a vector
  std::vector<Rows> rows = {};
};

/// One trained tensor as this program holds it: the weight of a linear layer is (out, in); queries,
/// keys and values are one tensor of qkv_width() rows, and so are the experts of a mixture: expert
/// e has the e-th part of the rows of gate, up and down.
struct ParameterSpec {
  std::string name;
  Shape shape;
  std::int64_t layer = 0;
  Role role = Role::token_embedding;
  DecayGroup decay = DecayGroup::matrix;
  Init init;
  std::vector<HfPiece> pieces;      ///< of the whole tensor: they cover every element exactly once
  std::optional<Slice> slice = {};  ///< none: this is the whole tensor
  /// What this rank counts in the norm, and saves: the first so many elements. Of what several
  /// tensor-parallel ranks have, one counts.
  std::int64_t n_counted = 0;
  std::int64_t n_elements() const { return shape.n_elements(); }
};

/// Whether it is a tensor of a mixture's experts, which have a range of its rows each.
bool is_of_experts(const ModelConfig& config, Role role);

/// Every parameter once, each as config.tp's rank has it, in model order: embedding, blocks, final
/// norm, head. This is the canonical order: of norms, of files, of buckets (reversed).
std::vector<ParameterSpec> parameters(const ModelConfig& config);

/// The layers of a rank, a range for each of its model chunks.
using LayerRanges = std::vector<Range>;
bool has_layer(const LayerRanges& ranges, std::int64_t layer);

/// Indices into parameters(), ascending, of those that a rank with these layers owns: sums and
/// updates. A tied embedding belongs to the head's rank, which has the larger part of its gradient.
std::vector<std::size_t> owned_parameters(const ModelConfig& config, const LayerRanges& ranges);
/// Whether these layers read a tied embedding that the head's rank owns.
bool borrows_embedding(const ModelConfig& config, const LayerRanges& ranges);

/// A place where a parameter's gradient arises. Each use has its own accumulator; only a tied
/// embedding has two uses (roles token_embedding and head_weight), whose sum is its gradient.
struct ParameterUse {
  std::size_t parameter = 0;  ///< index into parameters()
  std::int64_t layer = 0;
  Role role = Role::token_embedding;
};

/// All uses, by layer, then in the order of the parameters; a tied head follows the final norm.
std::vector<ParameterUse> parameter_uses(const ModelConfig& config);

/// The views that layer `layer` reads, from one view a parameter (index as in parameters()). Views
/// of parameters that other layers alone use may be empty.
Values layer_values(const std::vector<ParameterUse>& uses, std::int64_t layer,
                    std::span<const View> by_parameter);
/// The views that layer `layer` writes its gradients to, from one view a use (index as in `uses`).
Gradients layer_gradients(const std::vector<ParameterUse>& uses, std::int64_t layer,
                          std::span<const MutView> by_use);

/// Elements of all parameters; a tied one counts once. fp32 bytes are four times that.
std::int64_t n_parameters(const ModelConfig& config);

/// Whether Hugging Face names and shapes are GPT-2's (LayerNorm, ungrouped heads, no rotary
/// positions, ungated mlp); otherwise they are Llama's, with its pattern for what Llama lacks.
/// Those of a mixture are Mixtral's, in GPT-2's pattern (mlp.gate, mlp.experts.N.c_fc and c_proj)
/// where the rest is GPT-2's.
bool has_gpt2_names(const ModelConfig& config);

}  // namespace llm
