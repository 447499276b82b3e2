#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// A label that counts for nothing: no loss, no gradient, not in the number of valid tokens.
inline constexpr std::int32_t ignored_label = -100;

/// losses[r] = log(sum over v of exp(logits[r, v])) - logits[r, labels[r]], 0 where ignored.
///   logits (n, V) f32   labels (n) i32 in [0, V) or ignored_label (DataError otherwise, when it
///   runs) losses (n) f32
void cross_entropy_forward(Queue& queue, View logits, View labels, MutView losses);

/// The same losses, and dlogits[r, v] = scale * (softmax(logits[r])[v] - [v == labels[r]]), 0 in
/// ignored rows: the gradient of scale * the sum of losses, computed in f32 and rounded once.
///   logits (n, V) f32, overwritten   dlogits (n, V) f32, bf16 or f16; f32 may be `logits` itself
void cross_entropy_forward_backward(Queue& queue, View labels, float scale, MutView logits,
                                    MutView dlogits, MutView losses);

}  // namespace llm
