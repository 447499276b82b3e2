#pragma once
#include <algorithm>
#include <cstdint>

#include "src/base/range.h"
#include "tensor/dtype.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/router.h"

namespace llm {

enum class Norm : std::uint8_t { layer_norm, rms_norm };

/// learned: a table that is trained. rotary: queries and keys are turned in every block.
/// sinusoidal: the fixed table of Vaswani et al. 2017, neither trained nor saved.
enum class Positions : std::uint8_t { learned, rotary, sinusoidal };

/// Everything that decides a decoder's parameters and its formulas. The defaults are a small GPT-2.
///
/// Blocks are pre-norm: x += attention(norm1(x)); x += mlp(norm2(x)); a final norm, then the head.
/// mlp(x) = down(f(up(x))), or down(f(gate(x)) * up(x)) where `gated`. In a mixture each token goes
/// through top_k of n_experts such mlps, whose outputs are added by the softmax of the router's
/// logits for them (tensor/ops/router.h). Dropout stands after the embedding, on the attention
/// weights, after the attention output and after the mlp.
struct ModelConfig {
  std::int64_t hidden_size = 512;
  std::int64_t n_layers = 2;
  std::int64_t n_heads = 8;
  std::int64_t n_kv_heads = 8;
  std::int64_t intermediate_size = 2048;
  std::int64_t vocab_size = 50257;
  std::int64_t max_seq_len = 512;
  float dropout = 0.1f;
  Norm norm = Norm::layer_norm;
  float norm_epsilon = 1e-5f;
  Positions positions = Positions::learned;
  float rope_theta = 10000.0f;
  Activation activation = Activation::gelu_tanh;
  bool gated = false;
  std::int64_t n_experts = 0;  ///< of every block; 0: one mlp, no mixture
  std::int64_t top_k = 0;
  RouterWeights router_weights = {.balance = 0.01f, .z = 0.001f};
  bool qkv_bias = true;  ///< the attention output's bias too
  bool mlp_bias = true;
  bool lm_head_bias = false;
  bool tie_embeddings = true;  ///< the head's matrix is the token embedding
  /// Of activations, their gradients, and the matrices and embeddings that products read: f32, bf16
  /// or f16. Vectors, statistics, logits, losses and gradients of parameters are f32 in any case.
  Dtype compute = Dtype::f32;

  /// The part of the model that a rank has where several share each layer (tensor parallelism):
  /// heads, the mlp's width or the experts, and the vocabulary are cut, see
  /// src/model/tensor_slice.h. The extents above are the whole model's.
  struct TensorParallel {
    int size = 1;
    int rank = 0;
    /// Sequence parallelism: between a layer's products each rank has a part of the rows.
    bool cuts_rows = false;

    /// Of n rows (tokens of a microbatch), those that this rank has there.
    Range rows(std::int64_t n) const {
      if (!cuts_rows) return {0, n};
      return {n * rank / size, n * (rank + 1) / size};
    }
  };
  TensorParallel tp = {};
  /// A mixture's experts, what tensor parallelism leaves of them, spread over the data-parallel
  /// ranks: these have different tokens, whose rows they exchange.
  struct ExpertParallel {
    int size = 1;
    int rank = 0;
  };
  ExpertParallel ep = {};

  std::int64_t head_dim() const { return hidden_size / n_heads; }
  std::int64_t n_local_heads() const { return n_heads / tp.size; }
  std::int64_t first_local_head() const { return tp.rank * n_local_heads(); }
  /// Ranks that have the same key and value head, where there are fewer of these than ranks.
  std::int64_t n_kv_sharers() const { return tp.size > n_kv_heads ? tp.size / n_kv_heads : 1; }
  std::int64_t n_local_kv_heads() const { return n_kv_heads * n_kv_sharers() / tp.size; }
  std::int64_t first_local_kv_head() const { return tp.rank / n_kv_sharers() * n_local_kv_heads(); }
  /// Of this rank's heads together.
  std::int64_t attention_width() const { return n_local_heads() * head_dim(); }
  std::int64_t qkv_width() const { return (n_local_heads() + 2 * n_local_kv_heads()) * head_dim(); }
  /// A mixture's ranks have whole experts.
  std::int64_t local_intermediate_size() const {
    return is_mixture() ? intermediate_size : intermediate_size / tp.size;
  }
  /// Whose rows of this rank's tokens the rank groups: those of its data-parallel group.
  Range routed_experts() const {
    const std::int64_t n = n_experts / tp.size;
    return {tp.rank * n, (tp.rank + 1) * n};
  }
  /// Those that it computes, and has the tensors of.
  Range local_experts() const {
    const std::int64_t n = n_experts / (tp.size * ep.size);
    const std::int64_t begin = routed_experts().begin + ep.rank * n;
    return {begin, begin + n};
  }
  /// Rows of this rank's embedding and head; the last ranks' may be padding.
  std::int64_t local_vocab_size() const { return (vocab_size + tp.size - 1) / tp.size; }
  Range local_tokens() const {
    const std::int64_t begin = std::min(vocab_size, tp.rank * local_vocab_size());
    return {begin, std::min(vocab_size, begin + local_vocab_size())};
  }
  /// Rows that may come for the local experts, of ranks with `n_tokens` at most.
  std::int64_t most_arrivals(std::int64_t n_tokens) const {
    return ep.size * n_tokens * std::min(top_k, local_experts().size());
  }
  bool is_mixture() const { return n_experts > 0; }
  /// How many mlps a token goes through.
  std::int64_t n_active_mlps() const { return is_mixture() ? top_k : 1; }
};

/// Throws ConfigError naming the model field, both numbers and the way out when no decoder can be
/// built: an extent below 1, heads that do not divide, an odd head_dim under rotary positions, more
/// top_k than experts.
void check(const ModelConfig& config);

/// Floating-point operations of forward and backward for one token: 6 for each weight of a matrix
/// product (the head's included, embedding look-ups and experts that it does not visit not), and 12
/// * n_layers * hidden_size * seq_len for attention, counted without the causal mask as is usual
/// for utilization figures.
double flops_per_token(const ModelConfig& config, std::int64_t seq_len);

}  // namespace llm
