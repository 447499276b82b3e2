#pragma once
#include <cstdint>
#include <functional>

#include "src/base/range.h"
#include "src/model/group_sums.h"
#include "src/model/model_config.h"
#include "src/model/parameters.h"
#include "src/model/row_exchange.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/router.h"
#include "tensor/queue.h"
#include "tensor/storage.h"
#include "tensor/view.h"

namespace llm {

/// What every op of one microbatch's pass shares. n = batch * seq_len tokens; C, F, V are
/// hidden_size, intermediate_size, vocab_size.
struct Pass {
  Queue& queue;
  Arena& scratch;  ///< scratch_bytes(): taken and given back within each call
  std::int64_t batch = 1;
  std::int64_t seq_len = 1;
  bool training = true;  ///< false: no dropout
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_sample = 0;  ///< global index of the microbatch's first sample in the step
  /// For the router's losses of a mixture, in block_backward and block_backward_input: labels (n)
  /// and the scale of head_forward_backward; their values are added to `router_losses`, if any.
  View labels = {};
  float loss_scale = 1;
  RouterLosses* router_losses = nullptr;
  GroupSums* sums = nullptr;  ///< of the tensor-parallel group, where it has several ranks
  /// Of the ranks that have the other experts (ModelConfig::ep), where there are several, and the
  /// most tokens that one of them has in this pass; 0: n_tokens().
  RowExchange* exchange = nullptr;
  std::int64_t most_tokens = 0;
  std::int64_t n_tokens() const { return batch * seq_len; }
};

/// The rows that all ranks with experts of a mixture send for this one's
/// (tensor/ops/expert_rows.h).
struct ArrivedRows {
  MutView bounds, begins, order;
  MutView x;  ///< (rows, C) by expert
};

/// What a block keeps from its forward for its backward; all but `x` lie in the arena of the
/// microbatch. Norm outputs and activations are computed again in backward. The mlp's rows are the
/// n tokens, a mixture's grouped rows (RouterShape::n_rows), or those that may arrive.
struct BlockSaved {
  View x;                ///< (n, C) the block's input
  MutView mean1, rstd1;  ///< (n); mean1 and mean2 are empty under RMSNorm
  MutView qkv;           ///< (n, qkv_width), after rotation
  MutView attention;     ///< (n, C) heads side by side, before the output projection
  MutView log_sum_exp;   ///< (batch, n_heads, seq_len)
  MutView middle;        ///< (n, C) x + attention
  MutView mean2, rstd2;  ///< (n)
  MutView gate;          ///< (rows, F) before the activation; empty unless gated
  MutView up;            ///< (rows, F) before the activation unless gated
  Routing routing;       ///< of a mixture
  ArrivedRows arrived;   ///< where its experts are spread over ranks
  MutView expert_out;    ///< (grouped rows, C) of a mixture, before tokens combine it
  MutView y;             ///< (n, C) the block's output
};

/// Gradients inside a block that block_backward_weight needs from block_backward_input.
struct BlockDeltas {
  MutView mlp_out;        ///< (n, C)
  MutView expert_out;     ///< (rows, C) and
  MutView router;         ///< (n, E), of a mixture's logits
  MutView gate;           ///< (rows, F), empty unless gated
  MutView up;             ///< (rows, F)
  MutView attention_out;  ///< (n, C)
  MutView qkv;            ///< (n, qkv_width)
};

/// The sum of the losses of a microbatch's valid tokens, added in token order, and their number.
/// The head sets them.
struct LossSum {
  double sum = 0;
  std::int64_t n_valid = 0;
  RouterLosses router;  ///< of a mixture's blocks, see Pass::router_losses
};

/// A decoder's formulas as plain functions over one layer each: whoever owns a range of layers
/// calls them in order. It holds no parameters and no activations. Each function enqueues its work
/// and returns at once; the decoder, its arguments' memory and a LossSum must outlive that work,
/// and arenas may be reused at once by later work of the same queue.
///   values   the layer's parameters, see layer_values
///   grads    where the layer's gradients go: `write` says set or add
/// Activations and their gradients have config.compute, as do the matrices and embeddings among the
/// values; everything else is f32, tokens and labels i32.
class Decoder {
 public:
  /// Throws ConfigError as check(config) does.
  explicit Decoder(const ModelConfig& config, Device device = Device::cpu);
  const ModelConfig& config() const { return config_; }

  // Training.

  /// y (n, C), taken from `saved`. tokens (n) in [0, V): DataError when it runs otherwise.
  MutView embed_forward(const Pass& pass, const Values& values, View tokens, Arena& saved) const;
  /// x (n, C) must stay until the block's backward has run. The result's views are from `saved`.
  BlockSaved block_forward(const Pass& pass, std::int64_t layer, const Values& values, View x,
                           Arena& saved) const;
  /// The same with the output y (n, C) elsewhere.
  BlockSaved block_forward(const Pass& pass, std::int64_t layer, const Values& values, View x,
                           Arena& saved, MutView y) const;
  /// What block_forward saved, computed again from x with the same bits, for the block's backward.
  /// The output is not computed: the result's y is empty. Takes recomputed_bytes() of `saved`.
  BlockSaved block_recompute(const Pass& pass, std::int64_t layer, const Values& values, View x,
                             Arena& saved) const;
  /// Final norm, head, loss and their gradients in one go, at the start of the backward: nothing is
  /// kept between the passes, and logits exist for head_chunk_rows() tokens at a time.
  ///   x (n, C)   labels (n) in [0, V) or ignored_label   dx (n, C) is set
  ///   scale   what the gradient of each valid token's loss is multiplied by (S / 2^k)
  ///   loss    is set once the queue has passed this call
  void head_forward_backward(const Pass& pass, const Values& values, View x, View labels,
                             float scale, const Gradients& grads, Write write, MutView dx,
                             LossSum& loss) const;
  /// dy (n, C) becomes the gradient of the block's input, in place. `after_mlp` is called before it
  /// returns, when the work on the mlp's and norm2's gradients is enqueued and attention's is not.
  void block_backward(
      const Pass& pass, std::int64_t layer, const Values& values, const BlockSaved& saved,
      const Gradients& grads, Write write, MutView dy,
      const std::function<void()>& after_mlp = [] {}) const;
  /// block_backward in two halves with the same bits. The first turns dy into dx and writes the
  /// gradients of the norms; the second writes those of matrices and their biases. The result's
  /// views are from `deltas` (delta_bytes()).
  BlockDeltas block_backward_input(const Pass& pass, std::int64_t layer, const Values& values,
                                   const BlockSaved& saved, const Gradients& grads, Write write,
                                   MutView dy, Arena& deltas) const;
  void block_backward_weight(const Pass& pass, const Values& values, const BlockSaved& saved,
                             const BlockDeltas& deltas, const Gradients& grads, Write write) const;
  /// dy (n, C) becomes the gradient of the table's rows, in place. A tied embedding whose two uses
  /// share an accumulator adds to what the head has written there. Where grads has no table,
  /// another rank holds it and calls embed_table_backward with that dy.
  void embed_backward(const Pass& pass, View tokens, MutView dy, const Gradients& grads,
                      Write write_table, Write write_positions) const;
  /// table (V, C) += dy's rows, by token.
  void embed_table_backward(const Pass& pass, View tokens, View dy, MutView table) const;

  // Forward only: validation and text. Nothing is kept.

  /// What is added to the token's rows, a row a position: learned or sinusoidal; empty under
  /// rotary positions.
  View positions(const Values& values) const;
  /// y (n, C), the caller's.
  void embed(const Pass& pass, const Values& values, View tokens, MutView y) const;
  /// x (n, C) becomes the block's output, in place.
  void block(const Pass& pass, std::int64_t layer, const Values& values, MutView x) const;
  /// The loss alone; arguments as in head_forward_backward.
  void head_loss(const Pass& pass, const Values& values, View x, View labels, LossSum& loss) const;
  /// logits (r, V) of any r contiguous rows x (r, C) of the last block's output, r at most n: the
  /// last position of a sample is part(x, ((i + 1) * seq_len - 1) * C, {1, C}).
  void head_logits(const Pass& pass, const Values& values, View x, MutView logits) const;

 private:
  ModelConfig config_;
  Storage sinusoids_;  // (max_seq_len, C), only where positions are sinusoidal
};

/// Bytes of the fixed position table that a Decoder holds; 0 where there is none.
std::int64_t position_table_bytes(const ModelConfig& config);

/// Rows of logits that exist at a time: 2^25 elements' worth, in multiples of 64; a function of the
/// vocabulary alone, so that the cut of the head's products never depends on the layout.
std::int64_t head_chunk_rows(const ModelConfig& config);

/// What is kept of a block between its forward and its backward: all of BlockSaved, or the output
/// alone (the next block's input), and the rest is computed again in backward.
enum class Recompute : std::uint8_t { none, block };

/// Exact bytes of one microbatch's `saved` arena for the layers of `layers` (-1 is the embedding).
std::int64_t saved_bytes(const ModelConfig& config, Range layers, std::int64_t batch,
                         std::int64_t seq_len, Recompute recompute = Recompute::none);
/// Exact bytes of what block_recompute takes; one block's BlockSaved but for x and y.
std::int64_t recomputed_bytes(const ModelConfig& config, std::int64_t batch, std::int64_t seq_len);
/// Exact peak of the scratch arena over every function of these layers, training and forward only.
std::int64_t scratch_bytes(const ModelConfig& config, Range layers, std::int64_t batch,
                           std::int64_t seq_len);
/// Exact bytes of one block's deltas.
std::int64_t delta_bytes(const ModelConfig& config, std::int64_t batch, std::int64_t seq_len);

}  // namespace llm
