#pragma once
#include <algorithm>
#include <cstdint>

#include "src/model/decoder.h"
#include "src/model/pass_parts.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/router.h"

namespace llm {

/// One block in one pass: what all of its parts below read.
struct Block {
  const ModelConfig& config;
  const Pass& pass;
  std::int64_t layer;
  const Values& values;

  std::int64_t n() const { return pass.n_tokens(); }
  std::int64_t n_own() const { return config.tp.rows(n()).size(); }
  bool has_dropout() const { return pass.training && config.dropout > 0; }
  AttentionShape attention_shape() const {
    return {.batch = pass.batch,
            .seq_len = pass.seq_len,
            .n_heads = config.n_local_heads(),
            .n_kv_heads = config.n_local_kv_heads(),
            .head_dim = config.head_dim(),
            .first_head = config.first_local_head()};
  }
  Dropout dropout(DropoutSite site) const { return dropout_at(config, pass, layer, site); }
  RouterShape router_shape() const {
    return {.n_tokens = n(),
            .seq_len = pass.seq_len,
            .n_experts = config.n_experts,
            .top_k = config.top_k,
            .own = config.routed_experts()};
  }
  NormPart norm1(const BlockSaved& saved) const {
    return {values[Role::norm1_weight], values[Role::norm1_bias], saved.mean1, saved.rstd1};
  }
  NormPart norm2(const BlockSaved& saved) const {
    return {values[Role::norm2_weight], values[Role::norm2_bias], saved.mean2, saved.rstd2};
  }
  MutView take_hidden(Arena& arena) const {
    return arena.take(config.compute, {n(), config.hidden_size});
  }
  MutView take_own_hidden(Arena& arena) const {
    return arena.take(config.compute, {n_own(), config.hidden_size});
  }
  /// Where a sum over the group is computed whose own rows go to `own`: there, if these are all.
  MutView room_for_sum(MutView own) const {
    return config.tp.cuts_rows ? take_hidden(pass.scratch) : own;
  }
  MutView take_attention_out(Arena& arena) const {
    return arena.take(config.compute, {n(), config.attention_width()});
  }
  MutView take_qkv(Arena& arena) const {
    return arena.take(config.compute, {n(), config.qkv_width()});
  }
  bool exchanges() const { return config.ep.size > 1; }
  /// What the mlp goes over: tokens, or as many rows as a mixture's own experts may have.
  std::int64_t n_rows() const {
    if (!config.is_mixture()) return n();
    return exchanges() ? config.most_arrivals(std::max(n(), pass.most_tokens)) : n_grouped_rows();
  }
  std::int64_t n_grouped_rows() const { return router_shape().n_rows(); }
  MutView take_grouped_rows(Arena& arena) const {
    return arena.take(config.compute, {n_grouped_rows(), config.hidden_size});
  }
  MutView take_intermediate(Arena& arena) const {
    return arena.take(config.compute, {n_rows(), config.local_intermediate_size()});
  }
  /// One row of the model's width for each row of the mlp.
  MutView take_expert_rows(Arena& arena) const {
    return arena.take(config.compute, {n_rows(), config.hidden_size});
  }
  /// y = x W^T + b, of which each rank of a tensor-parallel group has some columns of x and W: the
  /// bias is added once. y (n, C), of which this rank's rows are set.
  void sum_of_products(View x, Role weight, Role bias, MutView y) const {
    if (pass.sums == nullptr) {
      linear_forward(pass.queue, x, values[weight], values[bias], y);
      return;
    }
    linear_forward(pass.queue, x, values[weight], View(), y);
    sum_over_group(config, pass, y);
    if (!values[bias].empty()) add_rows(pass.queue, values[bias], own_rows(config, y));
  }
  MutView take_gate(Arena& arena) const {
    return config.gated ? take_intermediate(arena) : MutView();
  }
};

}  // namespace llm
