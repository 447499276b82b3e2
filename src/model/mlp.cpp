#include "src/model/mlp.h"

#include "tensor/ops/activation.h"
#include "tensor/ops/expert_rows.h"
#include "tensor/ops/grouped_linear.h"
#include "tensor/ops/grouped_rows.h"

namespace llm {
namespace {

/// Of a mixture's rows as its experts go over them.
View expert_begins(const Block& block, const BlockSaved& saved) {
  return block.exchanges() ? saved.arrived.begins : saved.routing.begins;
}

/// A linear layer of the mlp over its rows; the bias's role follows the weight's.
struct MlpLinear {
  const Block& block;
  const BlockSaved& saved;
  Role weight_role;

  Role bias_role() const { return static_cast<Role>(static_cast<int>(weight_role) + 1); }
  View weight() const { return block.values[weight_role]; }
  View begins() const { return expert_begins(block, saved); }
  bool is_grouped() const { return block.config.is_mixture(); }

  void forward(View x, MutView y) const {
    const View bias = block.values[bias_role()];
    if (is_grouped()) {
      grouped_linear_forward(block.pass.queue, begins(), x, weight(), bias, y);
    } else {
      linear_forward(block.pass.queue, x, weight(), bias, y);
    }
  }
  void backward_input(View dy, Write write, MutView dx) const {
    if (is_grouped()) {
      grouped_linear_backward_input(block.pass.queue, begins(), dy, weight(), write, dx);
    } else {
      linear_backward_input(block.pass.queue, dy, weight(), write, dx);
    }
  }
  void backward_weight(View x, View dy, Write write, const Gradients& grads) const {
    const MutView dweight = grads[weight_role];
    const MutView dbias = grads[bias_role()];
    if (is_grouped()) {
      grouped_linear_backward_weight(block.pass.queue, begins(), x, dy, write, dweight, dbias);
    } else {
      linear_backward_weight(block.pass.queue, x, dy, write, dweight, dbias);
    }
  }
};

/// Grouped rows to the ranks of their experts: `rows` are then what came for this rank's, by
/// expert.
void send_to_experts(const Block& block, const BlockSaved& saved, View grouped, MutView rows) {
  const Pass& pass = block.pass;
  const ArenaScope scope(pass.scratch);
  const ArrivedRows& arrived = saved.arrived;
  const MutView by_rank = block.take_expert_rows(pass.scratch);
  pass.exchange->to_experts(pass.queue, saved.routing.begins, arrived.bounds, grouped, by_rank);
  rows_by_expert(pass.queue, arrived.begins, arrived.order, by_rank, rows);
}

/// And back: `grouped` are then what the experts' ranks made of this rank's rows.
void send_from_experts(const Block& block, const BlockSaved& saved, View rows, MutView grouped) {
  const Pass& pass = block.pass;
  const ArenaScope scope(pass.scratch);
  const ArrivedRows& arrived = saved.arrived;
  const MutView by_rank = block.take_expert_rows(pass.scratch);
  rows_by_rank(pass.queue, arrived.begins, arrived.order, rows, by_rank);
  pass.exchange->from_experts(pass.queue, saved.routing.begins, arrived.bounds, by_rank, grouped);
}

/// A mixture's grouped copies of the tokens' rows, in scratch; otherwise the rows themselves.
MutView mlp_rows(const Block& block, const BlockSaved& saved, MutView normed) {
  if (!block.config.is_mixture()) return normed;
  const MutView rows = block.take_grouped_rows(block.pass.scratch);
  group_rows(block.pass.queue, block.router_shape(), saved.routing, normed, rows);
  return rows;
}

/// The same where other ranks have some of the experts: what came for this rank's, which is kept.
MutView exchanged_rows(const Block& block, const BlockSaved& saved, MutView normed) {
  const Pass& pass = block.pass;
  const ArrivedRows& arrived = saved.arrived;
  pass.exchange->share_begins(pass.queue, saved.routing.begins, arrived.bounds);
  order_by_expert(pass.queue, arrived.bounds, arrived.begins, arrived.order);
  send_to_experts(block, saved, mlp_rows(block, saved, normed), arrived.x);
  return arrived.x;
}

/// saved.up and saved.gate, and in a mixture the routing, from saved.middle.
void forward_hidden(const Block& block, const BlockSaved& saved) {
  Queue& queue = block.pass.queue;
  const ArenaScope scope(block.pass.scratch);
  const MutView normed = block.take_hidden(block.pass.scratch);
  normalize(block.config, block.pass, block.norm2(saved), saved.middle, normed);
  if (block.config.is_mixture()) {
    linear_forward(queue, normed, block.values[Role::router_weight], View(), saved.routing.logits);
    route(queue, block.router_shape(), saved.routing);
  }
  const MutView rows =
      block.exchanges() ? exchanged_rows(block, saved, normed) : mlp_rows(block, saved, normed);
  MlpLinear{block, saved, Role::up_weight}.forward(rows, saved.up);
  if (block.config.gated) {
    MlpLinear{block, saved, Role::gate_weight}.forward(rows, saved.gate);
  }
}

/// How many of a mixture's grouped rows there are; empty: all rows of the mlp.
View n_used_rows(const Block& block, const BlockSaved& saved) {
  if (!block.config.is_mixture()) return {};
  const View begins = expert_begins(block, saved);
  return part(begins, begins.n_elements() - 1, {1});
}

/// The hidden layer after its activation, from what lies before it.
void activate(const Block& block, const BlockSaved& saved, MutView hidden) {
  const View n_rows = n_used_rows(block, saved);
  if (block.config.gated) {
    gated_forward(block.pass.queue, block.config.activation, saved.gate, saved.up, hidden, n_rows);
  } else {
    activation_forward(block.pass.queue, block.config.activation, saved.up, hidden, n_rows);
  }
}

/// Whether the hidden layer is one op: gelu_tanh of one linear layer.
bool is_linear_gelu(const ModelConfig& config) {
  return !config.gated && !config.is_mixture() && config.activation == Activation::gelu_tanh;
}

/// saved.up, and `hidden` if that is wanted, from saved.middle, where is_linear_gelu. The rows
/// after norm2 pass through `normed`.
void forward_linear_gelu(const Block& block, const BlockSaved& saved, MutView normed,
                         MutView hidden, Hidden use) {
  normalize(block.config, block.pass, block.norm2(saved), saved.middle, normed);
  linear_gelu_tanh(block.pass.queue, normed, block.values[Role::up_weight],
                   block.values[Role::up_bias], saved.up, hidden, use);
}

void forward_out(const Block& block, const BlockSaved& saved, MutView out) {
  const ArenaScope scope(block.pass.scratch);
  const MutView hidden = block.take_intermediate(block.pass.scratch);
  activate(block, saved, hidden);
  if (block.config.is_mixture()) {
    MlpLinear{block, saved, Role::down_weight}.forward(hidden, out);
  } else {
    block.sum_of_products(hidden, Role::down_weight, Role::down_bias, out);
  }
}

/// saved.expert_out.
void forward_experts(const Block& block, const BlockSaved& saved) {
  if (!block.exchanges()) return forward_out(block, saved, saved.expert_out);
  const ArenaScope scope(block.pass.scratch);
  const MutView out = block.take_expert_rows(block.pass.scratch);
  forward_out(block, saved, out);
  send_from_experts(block, saved, out, saved.expert_out);
}

/// The gradient of the last linear layer's output.
View out_delta(const Block& block, const BlockDeltas& deltas) {
  return block.config.is_mixture() ? deltas.expert_out : deltas.mlp_out;
}

/// From deltas.mlp_out to what experts and router read.
void combine_backward(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas) {
  const Pass& pass = block.pass;
  const ArenaScope scope(pass.scratch);
  const MutView dweights = pass.scratch.take(Dtype::f32, {block.n(), block.config.top_k});
  const MutView token_losses = pass.scratch.take(Dtype::f32, {block.n(), 2});
  const MutView dgrouped =
      block.exchanges() ? block.take_grouped_rows(pass.scratch) : deltas.expert_out;
  combine_rows_backward(pass.queue, block.router_shape(), saved.routing, saved.expert_out,
                        deltas.mlp_out, dgrouped, dweights);
  if (block.exchanges()) send_to_experts(block, saved, dgrouped, deltas.expert_out);
  // Each visit's is on the one rank that has its expert; the others add zeros. So all ranks have
  // the same gradient of the router.
  if (pass.sums != nullptr) pass.sums->all_reduce(pass.queue, dweights);
  router_backward(pass.queue, block.router_shape(), saved.routing, dweights, pass.labels,
                  block.config.router_weights, pass.loss_scale, deltas.router, token_losses);
  if (pass.router_losses != nullptr) {
    add_router_losses(pass.queue, token_losses, *pass.router_losses);
  }
}

}  // namespace

void take_mlp(const Block& block, Arena& arena, BlockSaved& saved) {
  saved.mean2 = take_mean(block.config, arena, block.n_own());
  saved.rstd2 = arena.take(Dtype::f32, {block.n_own()});
  saved.gate = block.take_gate(arena);
  saved.up = block.take_intermediate(arena);
  if (!block.config.is_mixture()) return;
  const RouterShape shape = block.router_shape();
  saved.routing = {.logits = arena.take(Dtype::f32, {shape.n_tokens, shape.n_experts}),
                   .experts = arena.take(Dtype::i32, {shape.n_tokens, shape.top_k}),
                   .weights = arena.take(Dtype::f32, {shape.n_tokens, shape.top_k}),
                   .rows = arena.take(Dtype::i32, {shape.n_tokens, shape.top_k}),
                   .visits = arena.take(Dtype::i32, {shape.n_rows()}),
                   .begins = arena.take(Dtype::i32, {shape.n_own() + 1}),
                   .counts = arena.take(Dtype::i32, {shape.n_sequences(), shape.n_experts})};
  if (block.exchanges()) {
    const std::int64_t width = block.config.local_experts().size() + 1;
    saved.arrived = {.bounds = arena.take(Dtype::i32, {block.config.ep.size, width}),
                     .begins = arena.take(Dtype::i32, {width}),
                     .order = arena.take(Dtype::i32, {block.n_rows()}),
                     .x = block.take_expert_rows(arena)};
  }
  saved.expert_out = block.take_grouped_rows(arena);
}

void take_mlp_deltas(const Block& block, Arena& arena, BlockDeltas& deltas) {
  deltas.gate = block.take_gate(arena);
  deltas.up = block.take_intermediate(arena);
  if (!block.config.is_mixture()) return;
  deltas.expert_out = block.take_expert_rows(arena);
  deltas.router = arena.take(block.config.compute, {block.n(), block.config.n_experts});
}

void mlp_forward_half(const Block& block, const BlockSaved& saved, MutView projected) {
  Queue& queue = block.pass.queue;
  if (is_linear_gelu(block.config)) {
    const ArenaScope scope(block.pass.scratch);
    const MutView hidden = block.take_intermediate(block.pass.scratch);
    forward_linear_gelu(block, saved, projected, hidden, Hidden::wanted);
    block.sum_of_products(hidden, Role::down_weight, Role::down_bias, projected);
  } else if (block.config.is_mixture()) {
    forward_hidden(block, saved);
    forward_experts(block, saved);
    combine_rows(queue, block.router_shape(), saved.routing, Weigh::yes, saved.expert_out,
                 projected);
    sum_over_group(block.config, block.pass, projected);
  } else {
    forward_hidden(block, saved);
    forward_out(block, saved, projected);
  }
  dropout_forward(queue, block.dropout(DropoutSite::mlp_output), block.pass.seq_len,
                  own_rows(block.config, projected), saved.middle, saved.y);
}

void mlp_recompute(const Block& block, const BlockSaved& saved) {
  if (is_linear_gelu(block.config)) {
    const ArenaScope scope(block.pass.scratch);
    const MutView hidden = block.take_intermediate(block.pass.scratch);
    const MutView normed = block.take_hidden(block.pass.scratch);
    return forward_linear_gelu(block, saved, normed, hidden, Hidden::room);
  }
  forward_hidden(block, saved);
  if (block.config.is_mixture()) forward_experts(block, saved);
}

void mlp_backward_input(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas) {
  Queue& queue = block.pass.queue;
  if (block.config.is_mixture()) combine_backward(block, saved, deltas);
  MlpLinear{block, saved, Role::down_weight}.backward_input(out_delta(block, deltas), Write::set,
                                                            deltas.up);
  const View n_rows = n_used_rows(block, saved);
  if (block.config.gated) {
    gated_backward(queue, block.config.activation, saved.gate, saved.up, deltas.up, deltas.gate,
                   deltas.up, n_rows);
  } else {
    activation_backward(queue, block.config.activation, saved.up, deltas.up, deltas.up, n_rows);
  }
}

void mlp_backward_weight(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas,
                         const Gradients& grads, Write write) {
  Queue& queue = block.pass.queue;
  Arena& scratch = block.pass.scratch;
  {
    const ArenaScope scope(scratch);
    const MutView hidden = block.take_intermediate(scratch);
    activate(block, saved, hidden);
    MlpLinear{block, saved, Role::down_weight}.backward_weight(hidden, out_delta(block, deltas),
                                                               write, grads);
  }
  const ArenaScope scope(scratch);
  const MutView normed = block.take_hidden(scratch);
  normalize(block.config, block.pass, block.norm2(saved), saved.middle, normed);
  if (block.config.is_mixture()) {
    linear_backward_weight(queue, normed, deltas.router, write, grads[Role::router_weight],
                           MutView());
  }
  const MutView rows = block.exchanges() ? saved.arrived.x : mlp_rows(block, saved, normed);
  MlpLinear{block, saved, Role::up_weight}.backward_weight(rows, deltas.up, write, grads);
  if (block.config.gated) {
    MlpLinear{block, saved, Role::gate_weight}.backward_weight(rows, deltas.gate, write, grads);
  }
}

void mlp_backward_norm(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas,
                       const Gradients& grads, Write write, MutView dy) {
  Queue& queue = block.pass.queue;
  const bool is_mixture = block.config.is_mixture();
  const ArenaScope scope(block.pass.scratch);
  const MutView dnormed = block.take_hidden(block.pass.scratch);
  const MutView drows = is_mixture ? block.take_expert_rows(block.pass.scratch) : dnormed;
  MlpLinear{block, saved, Role::up_weight}.backward_input(deltas.up, Write::set, drows);
  if (block.config.gated) {
    MlpLinear{block, saved, Role::gate_weight}.backward_input(deltas.gate, Write::add, drows);
  }
  if (is_mixture) {
    MutView dgrouped = drows;
    if (block.exchanges()) {
      dgrouped = block.take_grouped_rows(block.pass.scratch);
      send_from_experts(block, saved, drows, dgrouped);
    }
    combine_rows(queue, block.router_shape(), saved.routing, Weigh::no, dgrouped, dnormed);
    if (block.config.tp.rank == 0) {  // once in the sum: all ranks have the same
      linear_backward_input(queue, deltas.router, block.values[Role::router_weight], Write::add,
                            dnormed);
    }
  }
  sum_over_group(block.config, block.pass, dnormed);
  norm_backward(block.config, queue, block.norm2(saved), saved.middle,
                own_rows(block.config, dnormed),
                {Write::add, dy, write, grads[Role::norm2_weight], grads[Role::norm2_bias]});
}

}  // namespace llm
