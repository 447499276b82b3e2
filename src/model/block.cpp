#include "src/model/block_parts.h"
#include "src/model/decoder.h"
#include "src/model/mlp.h"
#include "src/model/pass_parts.h"
#include "tensor/ops/attention.h"

namespace llm {
namespace {

/// What the attention half keeps, from any arena.
void take_attention(const Block& block, Arena& arena, BlockSaved& saved) {
  saved.mean1 = take_mean(block.config, arena, block.n_own());
  saved.rstd1 = arena.take(Dtype::f32, {block.n_own()});
  saved.qkv = block.take_qkv(arena);
  saved.attention = block.take_attention_out(arena);
  saved.log_sum_exp =
      arena.take(Dtype::f32, {block.pass.batch, block.config.n_local_heads(), block.pass.seq_len});
}

/// All that a block keeps but its output.
BlockSaved take_saved(const Block& block, View x, Arena& arena) {
  BlockSaved saved;
  saved.x = x;
  take_attention(block, arena, saved);
  saved.middle = block.take_own_hidden(arena);
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
    normalize(block.config, block.pass, block.norm1(saved), saved.x, normed);
    linear_forward(queue, normed, block.values[Role::qkv_weight], block.values[Role::qkv_bias],
                   saved.qkv);
  }
  if (config.positions == Positions::rotary) {
    rope_forward(queue, block.attention_shape(), config.rope_theta, saved.qkv);
  }
  attention_forward(queue, block.attention_shape(), saved.qkv,
                    block.dropout(DropoutSite::attention_weights), saved.attention,
                    saved.log_sum_exp);
  block.sum_of_products(saved.attention, Role::attention_out_weight, Role::attention_out_bias,
                        projected);
  dropout_forward(queue, block.dropout(DropoutSite::attention_output), block.pass.seq_len,
                  own_rows(config, projected), saved.x, saved.middle);
}

/// From the gradient of the projection's output to that of queries, keys and values.
void attention_backward_input(const Block& block, const BlockSaved& saved,
                              const BlockDeltas& deltas) {
  Queue& queue = block.pass.queue;
  const ArenaScope scope(block.pass.scratch);
  const MutView dattention = block.take_attention_out(block.pass.scratch);
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
  normalize(block.config, block.pass, block.norm1(saved), saved.x, normed);
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
  sum_over_group(block.config, block.pass, dnormed);
  norm_backward(block.config, queue, block.norm1(saved), saved.x, own_rows(block.config, dnormed),
                {Write::add, dy, write, grads[Role::norm1_weight], grads[Role::norm1_bias]});
}

/// The gradient of a half's output before its dropout, of all tokens.
void output_delta(const Block& block, DropoutSite site, View dy, MutView delta) {
  dropout_backward(block.pass.queue, block.dropout(site), block.pass.seq_len, dy,
                   own_rows(block.config, delta));
  gather_over_group(block.config, block.pass, delta);
}

/// The same in scratch. It is dy itself where there is neither dropout nor another rank's row.
MutView output_delta(const Block& block, DropoutSite site, MutView dy) {
  if (!block.has_dropout() && !block.config.tp.cuts_rows) return dy;
  const MutView delta = block.take_hidden(block.pass.scratch);
  output_delta(block, site, dy, delta);
  return delta;
}

}  // namespace

BlockSaved Decoder::block_forward(const Pass& pass, std::int64_t layer, const Values& values,
                                  View x, Arena& saved_arena) const {
  const std::int64_t n_own = config_.tp.rows(pass.n_tokens()).size();
  const MutView y = saved_arena.take(config_.compute, {n_own, config_.hidden_size});
  return block_forward(pass, layer, values, x, saved_arena, y);
}

BlockSaved Decoder::block_forward(const Pass& pass, std::int64_t layer, const Values& values,
                                  View x, Arena& saved_arena, MutView y) const {
  const Block block{config_, pass, layer, values};
  BlockSaved saved = take_saved(block, x, saved_arena);
  saved.y = y;
  const ArenaScope scope(pass.scratch);
  const MutView projected = block.room_for_sum(saved.middle);
  attention_forward_half(block, saved, projected);
  mlp_forward_half(block, saved, config_.tp.cuts_rows ? projected : saved.y);
  return saved;
}

BlockSaved Decoder::block_recompute(const Pass& pass, std::int64_t layer, const Values& values,
                                    View x, Arena& saved_arena) const {
  const Block block{config_, pass, layer, values};
  const BlockSaved saved = take_saved(block, x, saved_arena);
  const ArenaScope scope(pass.scratch);
  attention_forward_half(block, saved, block.room_for_sum(saved.middle));
  mlp_recompute(block, saved);
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
    take_mlp_deltas(block, pass.scratch, deltas);
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
  BlockDeltas deltas;
  deltas.mlp_out = block.take_hidden(arena);
  deltas.attention_out = block.take_hidden(arena);
  deltas.qkv = block.take_qkv(arena);
  take_mlp_deltas(block, arena, deltas);
  output_delta(block, DropoutSite::mlp_output, dy, deltas.mlp_out);
  mlp_backward_input(block, saved, deltas);
  mlp_backward_norm(block, saved, deltas, grads, write, dy);
  output_delta(block, DropoutSite::attention_output, dy, deltas.attention_out);
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
