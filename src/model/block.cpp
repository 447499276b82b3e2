#include "src/model/decoder.h"
#include "src/model/pass_parts.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/attention.h"

namespace llm {
namespace {

/// One block in one pass: what all of its parts below read.
struct Block {
  const ModelConfig& config;
  const Pass& pass;
  std::int64_t layer;
  const Values& values;

  std::int64_t n() const { return pass.n_tokens(); }
  bool has_dropout() const { return pass.training && config.dropout > 0; }
  AttentionShape attention_shape() const {
    return {.batch = pass.batch,
            .seq_len = pass.seq_len,
            .n_heads = config.n_heads,
            .n_kv_heads = config.n_kv_heads,
            .head_dim = config.head_dim()};
  }
  Dropout dropout(DropoutSite site) const { return dropout_at(config, pass, layer, site); }
  NormPart norm1(const BlockSaved& saved) const {
    return {values[Role::norm1_weight], values[Role::norm1_bias], saved.mean1, saved.rstd1};
  }
  NormPart norm2(const BlockSaved& saved) const {
    return {values[Role::norm2_weight], values[Role::norm2_bias], saved.mean2, saved.rstd2};
  }
  MutView take_hidden(Arena& arena) const {
    return arena.take(config.compute, {n(), config.hidden_size});
  }
  MutView take_qkv(Arena& arena) const {
    return arena.take(config.compute, {n(), config.qkv_width()});
  }
  MutView take_intermediate(Arena& arena) const {
    return arena.take(config.compute, {n(), config.intermediate_size});
  }
  MutView take_gate(Arena& arena) const {
    return config.gated ? take_intermediate(arena) : MutView();
  }
};

/// What the attention half keeps, from any arena.
void take_attention(const Block& block, Arena& arena, BlockSaved& saved) {
  saved.mean1 = take_mean(block.config, arena, block.n());
  saved.rstd1 = arena.take(Dtype::f32, {block.n()});
  saved.qkv = block.take_qkv(arena);
  saved.attention = block.take_hidden(arena);
  saved.log_sum_exp =
      arena.take(Dtype::f32, {block.pass.batch, block.config.n_heads, block.pass.seq_len});
}

/// What the mlp half keeps.
void take_mlp(const Block& block, Arena& arena, BlockSaved& saved) {
  saved.mean2 = take_mean(block.config, arena, block.n());
  saved.rstd2 = arena.take(Dtype::f32, {block.n()});
  saved.gate = block.take_gate(arena);
  saved.up = block.take_intermediate(arena);
}

/// All that a block keeps but its output.
BlockSaved take_saved(const Block& block, View x, Arena& arena) {
  BlockSaved saved;
  saved.x = x;
  take_attention(block, arena, saved);
  saved.middle = block.take_hidden(arena);
  take_mlp(block, arena, saved);
  return saved;
}

/// saved.middle = saved.x + dropout(projection(attention(norm1(saved.x)))); the projection's output
/// passes through `projected`, which may be saved.middle.
void attention_forward_half(const Block& block, const BlockSaved& saved, MutView projected) {
  const ModelConfig& config = block.config;
  Queue& queue = block.pass.queue;
  {
    const ArenaScope scope(block.pass.scratch);
    const MutView normed = block.take_hidden(block.pass.scratch);
    norm_forward(config, queue, block.norm1(saved), saved.x, normed);
    linear_forward(queue, normed, block.values[Role::qkv_weight], block.values[Role::qkv_bias],
                   saved.qkv);
  }
  if (config.positions == Positions::rotary) {
    rope_forward(queue, block.attention_shape(), config.rope_theta, saved.qkv);
  }
  attention_forward(queue, block.attention_shape(), saved.qkv,
                    block.dropout(DropoutSite::attention_weights), saved.attention,
                    saved.log_sum_exp);
  linear_forward(queue, saved.attention, block.values[Role::attention_out_weight],
                 block.values[Role::attention_out_bias], projected);
  dropout_forward(queue, block.dropout(DropoutSite::attention_output), block.pass.seq_len,
                  projected, saved.x, saved.middle);
}

/// The mlp's hidden layer after its activation, from what lies before it.
void activate(const Block& block, const BlockSaved& saved, MutView hidden) {
  if (block.config.gated) {
    gated_forward(block.pass.queue, block.config.activation, saved.gate, saved.up, hidden);
  } else {
    activation_forward(block.pass.queue, block.config.activation, saved.up, hidden);
  }
}

/// What the mlp's activation reads: saved.up and saved.gate from saved.middle.
void mlp_forward_hidden(const Block& block, const BlockSaved& saved) {
  Queue& queue = block.pass.queue;
  const ArenaScope scope(block.pass.scratch);
  const MutView normed = block.take_hidden(block.pass.scratch);
  norm_forward(block.config, queue, block.norm2(saved), saved.middle, normed);
  linear_forward(queue, normed, block.values[Role::up_weight], block.values[Role::up_bias],
                 saved.up);
  if (block.config.gated) {
    linear_forward(queue, normed, block.values[Role::gate_weight], block.values[Role::gate_bias],
                   saved.gate);
  }
}

/// saved.y = saved.middle + dropout(mlp(norm2(saved.middle))), through `projected` as above.
void mlp_forward_half(const Block& block, const BlockSaved& saved, MutView projected) {
  Queue& queue = block.pass.queue;
  Arena& scratch = block.pass.scratch;
  mlp_forward_hidden(block, saved);
  {
    const ArenaScope scope(scratch);
    const MutView hidden = block.take_intermediate(scratch);
    activate(block, saved, hidden);
    linear_forward(queue, hidden, block.values[Role::down_weight], block.values[Role::down_bias],
                   projected);
  }
  dropout_forward(queue, block.dropout(DropoutSite::mlp_output), block.pass.seq_len, projected,
                  saved.middle, saved.y);
}

/// From the gradient of the mlp's output to those of the values before the activation.
void mlp_backward_input(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas) {
  Queue& queue = block.pass.queue;
  linear_backward_input(queue, deltas.mlp_out, block.values[Role::down_weight], Write::set,
                        deltas.up);
  if (block.config.gated) {
    gated_backward(queue, block.config.activation, saved.gate, saved.up, deltas.up, deltas.gate,
                   deltas.up);
  } else {
    activation_backward(queue, block.config.activation, saved.up, deltas.up, deltas.up);
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
    linear_backward_weight(queue, hidden, deltas.mlp_out, write, grads[Role::down_weight],
                           grads[Role::down_bias]);
  }
  const ArenaScope scope(scratch);
  const MutView normed = block.take_hidden(scratch);
  norm_forward(block.config, queue, block.norm2(saved), saved.middle, normed);
  linear_backward_weight(queue, normed, deltas.up, write, grads[Role::up_weight],
                         grads[Role::up_bias]);
  if (block.config.gated) {
    linear_backward_weight(queue, normed, deltas.gate, write, grads[Role::gate_weight],
                           grads[Role::gate_bias]);
  }
}

/// dy += the gradient through the mlp and norm2.
void mlp_backward_norm(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas,
                       const Gradients& grads, Write write, MutView dy) {
  Queue& queue = block.pass.queue;
  const ArenaScope scope(block.pass.scratch);
  const MutView dnormed = block.take_hidden(block.pass.scratch);
  linear_backward_input(queue, deltas.up, block.values[Role::up_weight], Write::set, dnormed);
  if (block.config.gated) {
    linear_backward_input(queue, deltas.gate, block.values[Role::gate_weight], Write::add, dnormed);
  }
  norm_backward(block.config, queue, block.norm2(saved), saved.middle, dnormed,
                {Write::add, dy, write, grads[Role::norm2_weight], grads[Role::norm2_bias]});
}

/// From the gradient of the projection's output to that of queries, keys and values.
void attention_backward_input(const Block& block, const BlockSaved& saved,
                              const BlockDeltas& deltas) {
  Queue& queue = block.pass.queue;
  const ArenaScope scope(block.pass.scratch);
  const MutView dattention = block.take_hidden(block.pass.scratch);
  linear_backward_input(queue, deltas.attention_out, block.values[Role::attention_out_weight],
                        Write::set, dattention);
  attention_backward(queue, block.attention_shape(), saved.qkv, saved.attention, saved.log_sum_exp,
                     dattention, block.dropout(DropoutSite::attention_weights), deltas.qkv);
  if (block.config.positions == Positions::rotary) {
    rope_backward(queue, block.attention_shape(), block.config.rope_theta, deltas.qkv);
  }
}

void attention_backward_weight(const Block& block, const BlockSaved& saved,
                               const BlockDeltas& deltas, const Gradients& grads, Write write) {
  Queue& queue = block.pass.queue;
  linear_backward_weight(queue, saved.attention, deltas.attention_out, write,
                         grads[Role::attention_out_weight], grads[Role::attention_out_bias]);
  const ArenaScope scope(block.pass.scratch);
  const MutView normed = block.take_hidden(block.pass.scratch);
  norm_forward(block.config, queue, block.norm1(saved), saved.x, normed);
  linear_backward_weight(queue, normed, deltas.qkv, write, grads[Role::qkv_weight],
                         grads[Role::qkv_bias]);
}

/// dy += the gradient through attention and norm1.
void attention_backward_norm(const Block& block, const BlockSaved& saved, const BlockDeltas& deltas,
                             const Gradients& grads, Write write, MutView dy) {
  Queue& queue = block.pass.queue;
  const ArenaScope scope(block.pass.scratch);
  const MutView dnormed = block.take_hidden(block.pass.scratch);
  linear_backward_input(queue, deltas.qkv, block.values[Role::qkv_weight], Write::set, dnormed);
  norm_backward(block.config, queue, block.norm1(saved), saved.x, dnormed,
                {Write::add, dy, write, grads[Role::norm1_weight], grads[Role::norm1_bias]});
}

/// The gradient of a half's output before its dropout. Without dropout that is dy itself.
MutView output_delta(const Block& block, DropoutSite site, MutView dy) {
  if (!block.has_dropout()) return dy;
  const MutView delta = block.take_hidden(block.pass.scratch);
  dropout_backward(block.pass.queue, block.dropout(site), block.pass.seq_len, dy, delta);
  return delta;
}

}  // namespace

BlockSaved Decoder::block_forward(const Pass& pass, std::int64_t layer, const Values& values,
                                  View x, Arena& saved_arena) const {
  const MutView y = saved_arena.take(config_.compute, {pass.n_tokens(), config_.hidden_size});
  return block_forward(pass, layer, values, x, saved_arena, y);
}

BlockSaved Decoder::block_forward(const Pass& pass, std::int64_t layer, const Values& values,
                                  View x, Arena& saved_arena, MutView y) const {
  const Block block{config_, pass, layer, values};
  BlockSaved saved = take_saved(block, x, saved_arena);
  saved.y = y;
  attention_forward_half(block, saved, saved.middle);
  mlp_forward_half(block, saved, saved.y);
  return saved;
}

BlockSaved Decoder::block_recompute(const Pass& pass, std::int64_t layer, const Values& values,
                                    View x, Arena& saved_arena) const {
  const Block block{config_, pass, layer, values};
  const BlockSaved saved = take_saved(block, x, saved_arena);
  attention_forward_half(block, saved, saved.middle);
  mlp_forward_hidden(block, saved);
  return saved;
}

void Decoder::block(const Pass& pass, std::int64_t layer, const Values& values, MutView x) const {
  const Block block{config_, pass, layer, values};
  BlockSaved saved;
  saved.x = x;
  saved.middle = x;
  saved.y = x;
  {
    const ArenaScope scope(pass.scratch);
    take_attention(block, pass.scratch, saved);
    attention_forward_half(block, saved, block.take_hidden(pass.scratch));
  }
  const ArenaScope scope(pass.scratch);
  take_mlp(block, pass.scratch, saved);
  mlp_forward_half(block, saved, block.take_hidden(pass.scratch));
}

void Decoder::block_backward(const Pass& pass, std::int64_t layer, const Values& values,
                             const BlockSaved& saved, const Gradients& grads, Write write,
                             MutView dy, const std::function<void()>& after_mlp) const {
  const Block block{config_, pass, layer, values};
  BlockDeltas deltas;
  {
    const ArenaScope scope(pass.scratch);
    deltas.mlp_out = output_delta(block, DropoutSite::mlp_output, dy);
    deltas.gate = block.take_gate(pass.scratch);
    deltas.up = block.take_intermediate(pass.scratch);
    mlp_backward_input(block, saved, deltas);
    mlp_backward_weight(block, saved, deltas, grads, write);
    mlp_backward_norm(block, saved, deltas, grads, write, dy);
  }
  after_mlp();
  const ArenaScope scope(pass.scratch);
  deltas.attention_out = output_delta(block, DropoutSite::attention_output, dy);
  deltas.qkv = block.take_qkv(pass.scratch);
  attention_backward_input(block, saved, deltas);
  attention_backward_weight(block, saved, deltas, grads, write);
  attention_backward_norm(block, saved, deltas, grads, write, dy);
}

BlockDeltas Decoder::block_backward_input(const Pass& pass, std::int64_t layer,
                                          const Values& values, const BlockSaved& saved,
                                          const Gradients& grads, Write write, MutView dy,
                                          Arena& arena) const {
  const Block block{config_, pass, layer, values};
  const BlockDeltas deltas{.mlp_out = block.take_hidden(arena),
                           .gate = block.take_gate(arena),
                           .up = block.take_intermediate(arena),
                           .attention_out = block.take_hidden(arena),
                           .qkv = block.take_qkv(arena)};
  dropout_backward(pass.queue, block.dropout(DropoutSite::mlp_output), pass.seq_len, dy,
                   deltas.mlp_out);
  mlp_backward_input(block, saved, deltas);
  mlp_backward_norm(block, saved, deltas, grads, write, dy);
  dropout_backward(pass.queue, block.dropout(DropoutSite::attention_output), pass.seq_len, dy,
                   deltas.attention_out);
  attention_backward_input(block, saved, deltas);
  attention_backward_norm(block, saved, deltas, grads, write, dy);
  return deltas;
}

void Decoder::block_backward_weight(const Pass& pass, const Values& values, const BlockSaved& saved,
                                    const BlockDeltas& deltas, const Gradients& grads,
                                    Write write) const {
  // Its parts draw no dropout, so the layer's number plays no role.
  const Block block{config_, pass, 0, values};
  mlp_backward_weight(block, saved, deltas, grads, write);
  attention_backward_weight(block, saved, deltas, grads, write);
}

}  // namespace llm
