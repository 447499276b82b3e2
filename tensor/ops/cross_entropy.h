#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// A label that counts for nothing: no loss, no gradient, not in the number of valid tokens.
inline constexpr std::int32_t ignored_label = -100;

/// Throws DataError as the ops below do; for labels that ops read on a device, which checks
/// nothing. An empty view passes.
void check_labels(View labels, std::int64_t n_classes);

/// losses[r] = log(sum over v of exp(logits[r, v])) - logits[r, labels[r]], 0 where ignored.
///   logits (n, V) f32   labels (n) i32 in [0, V) or ignored_label (DataError otherwise, when it
///   runs) losses (n) f32
void cross_entropy_forward(Queue& queue, View logits, View labels, MutView losses);

/// The same losses, and dlogits[r, v] = scale * (softmax(logits[r])[v] - [v == labels[r]]), 0 in
/// ignored rows: the gradient of scale * the sum of losses, computed in f32 and rounded once.
///   logits (n, V) f32, overwritten   dlogits (n, V) f32, bf16 or f16; f32 may be `logits` itself
void cross_entropy_forward_backward(Queue& queue, View labels, float scale, MutView logits,
                                    MutView dlogits, MutView losses);

// Where each of several ranks has the logits of a part of the vocabulary: first every rank's own
// statistics, then, once all ranks have those of all, the loss and the gradient.

/// The classes of a rank's logits: columns 0 .. n_own - 1 are first_class + column, the columns
/// after them are padding.
struct VocabularyPart {
  std::int64_t first_class = 0;
  std::int64_t n_own = 0;
  std::int64_t n_classes = 0;  ///< of all ranks
};

/// statistics[r] = log(sum over own v of exp(logits[r, v])), and the logit of the label or 0.
///   logits (n, columns) f32   labels (n) i32   statistics (n, 2) f32
/// A rank without own classes has -infinity.
void cross_entropy_statistics(Queue& queue, View logits, View labels, VocabularyPart part,
                              MutView statistics);

/// losses as cross_entropy_forward's; and where `dlogits` is not empty, its gradient's own columns
/// as cross_entropy_forward_backward, 0 in the padding. The same bits of losses on every rank.
///   all (ranks, n, 2) f32, the statistics by rank   logits overwritten, dlogits may be logits
void cross_entropy_of_parts(Queue& queue, View all, View labels, VocabularyPart part, float scale,
                            MutView logits, MutView dlogits, MutView losses);

}  // namespace llm
