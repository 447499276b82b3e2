#include <algorithm>

#include "src/model/decoder.h"

namespace llm {
namespace {

/// Bytes that an arena uses for the tensors of one pass.
struct Sizes {
  const ModelConfig& config;
  std::int64_t batch;
  std::int64_t seq_len;

  std::int64_t n() const { return batch * seq_len; }
  std::int64_t n_own() const { return config.tp.rows(n()).size(); }
  std::int64_t floats(Shape shape) const { return Arena::bytes_for(Dtype::f32, shape); }
  std::int64_t values(Shape shape) const { return Arena::bytes_for(config.compute, shape); }
  std::int64_t hidden() const { return values({n(), config.hidden_size}); }
  /// Of this rank's rows alone.
  std::int64_t own_hidden() const { return values({n_own(), config.hidden_size}); }
  /// What a pass that cuts rows needs beside them.
  std::int64_t other_hidden() const { return config.tp.cuts_rows ? hidden() : 0; }
  std::int64_t attention_out() const { return values({n(), config.attention_width()}); }
  std::int64_t qkv() const { return values({n(), config.qkv_width()}); }
  RouterShape router() const {
    return {n(), seq_len, config.n_experts, config.top_k, config.routed_experts()};
  }
  bool exchanges() const { return config.ep.size > 1; }
  std::int64_t n_rows() const {
    if (!config.is_mixture()) return n();
    return exchanges() ? config.most_arrivals(n()) : router().n_rows();
  }
  std::int64_t intermediate() const { return values({n_rows(), config.local_intermediate_size()}); }
  /// What only a mixture has.
  std::int64_t expert_rows() const {
    return config.is_mixture() ? values({n_rows(), config.hidden_size}) : 0;
  }
  std::int64_t grouped_rows() const {
    return config.is_mixture() ? values({router().n_rows(), config.hidden_size}) : 0;
  }
  /// Rows of other ranks, what is kept of them and what is scratch.
  std::int64_t arrived() const {
    if (!exchanges()) return 0;
    const auto ints = [](Shape shape) { return Arena::bytes_for(Dtype::i32, shape); };
    const std::int64_t width = config.local_experts().size() + 1;
    return ints({config.ep.size, width}) + ints({width}) + ints({n_rows()}) + expert_rows();
  }
  std::int64_t on_their_way() const { return exchanges() ? expert_rows() : 0; }
  std::int64_t router_weights() const {
    return config.is_mixture() ? floats({n(), config.top_k}) : 0;
  }
  std::int64_t router_backward() const {
    return config.is_mixture() ? router_weights() + floats({n(), 2}) : 0;
  }
  std::int64_t routing() const {
    if (!config.is_mixture()) return 0;
    const auto ints = [](Shape shape) { return Arena::bytes_for(Dtype::i32, shape); };
    return floats({n(), config.n_experts}) + router_weights() + 2 * ints({n(), config.top_k}) +
           ints({router().n_rows()}) + ints({router().n_own() + 1}) +
           ints({batch, config.n_experts});
  }
  std::int64_t mlp_deltas() const {
    const std::int64_t router = config.is_mixture() ? values({n(), config.n_experts}) : 0;
    return gate() + intermediate() + expert_rows() + router;
  }
  std::int64_t gate() const { return config.gated ? intermediate() : 0; }
  std::int64_t statistics() const {
    return (config.norm == Norm::layer_norm ? 2 : 1) * floats({n_own()});
  }
  std::int64_t attention_saved() const {
    return statistics() + qkv() + attention_out() +
           floats({batch, config.n_local_heads(), seq_len});
  }
  std::int64_t mlp_saved() const {
    return statistics() + gate() + intermediate() + routing() + arrived() + grouped_rows();
  }
  /// Of one chunk, with a second set in the compute dtype where that is not their own.
  std::int64_t logits() const {
    const std::int64_t n_chunk = std::min(n(), head_chunk_rows(config));
    const Shape shape{n_chunk, config.local_vocab_size()};
    const std::int64_t parts = config.tp.size > 1 ? floats({config.tp.size, n_chunk, 2}) : 0;
    return parts + floats(shape) + (config.compute == Dtype::f32 ? 0 : values(shape));
  }
};

/// The forward-only pass takes the most in forward: what training saves lies in scratch there.
std::int64_t block_forward_scratch(const Sizes& s) {
  const std::int64_t attention = s.attention_saved() + s.hidden() + s.hidden();
  const std::int64_t mlp =
      s.mlp_saved() + s.hidden() +
      std::max(s.hidden() + s.grouped_rows() + s.on_their_way(),
               s.on_their_way() + std::max(s.intermediate(), s.on_their_way()));
  return std::max(attention, mlp);
}

std::int64_t block_backward_scratch(const Sizes& s) {
  const bool has_delta = s.config.dropout > 0 || s.config.tp.cuts_rows;
  const std::int64_t output = has_delta ? s.hidden() : 0;
  const std::int64_t mlp =
      output + s.mlp_deltas() +
      std::max({s.hidden() + s.grouped_rows() + 2 * s.on_their_way(), s.intermediate(),
                s.router_backward() + (s.exchanges() ? s.grouped_rows() + s.on_their_way() : 0)});
  return std::max(mlp, output + s.qkv() + s.hidden());
}

std::int64_t head_scratch(const Sizes& s) {
  return s.statistics() + 2 * s.hidden() + s.floats({s.n()}) + s.logits();
}

bool has_blocks(const ModelConfig& config, Range layers) {
  return std::max<std::int64_t>(layers.begin, 0) < std::min(layers.end, config.n_layers);
}

bool has_layer(Range layers, std::int64_t layer) {
  return layers.begin <= layer && layer < layers.end;
}

}  // namespace

std::int64_t recomputed_bytes(const ModelConfig& config, std::int64_t batch, std::int64_t seq_len) {
  const Sizes s{config, batch, seq_len};
  return s.attention_saved() + s.mlp_saved() + s.own_hidden();
}

std::int64_t saved_bytes(const ModelConfig& config, Range layers, std::int64_t batch,
                         std::int64_t seq_len, Recompute recompute) {
  const Sizes s{config, batch, seq_len};
  std::int64_t bytes = has_layer(layers, embedding_layer) ? s.own_hidden() : 0;
  if (has_blocks(config, layers)) {
    const std::int64_t n_blocks =
        std::min(layers.end, config.n_layers) - std::max<std::int64_t>(layers.begin, 0);
    bytes += n_blocks * s.own_hidden();
    if (recompute == Recompute::none) bytes += n_blocks * recomputed_bytes(config, batch, seq_len);
  }
  return bytes;
}

std::int64_t scratch_bytes(const ModelConfig& config, Range layers, std::int64_t batch,
                           std::int64_t seq_len) {
  const Sizes s{config, batch, seq_len};
  std::int64_t bytes = has_layer(layers, embedding_layer) ? s.other_hidden() : 0;
  if (has_blocks(config, layers)) {
    bytes = std::max({bytes, block_forward_scratch(s), block_backward_scratch(s)});
  }
  if (has_layer(layers, head_layer(config))) bytes = std::max(bytes, head_scratch(s));
  return bytes;
}

std::int64_t delta_bytes(const ModelConfig& config, std::int64_t batch, std::int64_t seq_len) {
  const Sizes s{config, batch, seq_len};
  return 2 * s.hidden() + s.mlp_deltas() + s.qkv();
}

}  // namespace llm
