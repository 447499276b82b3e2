#pragma once
#include <algorithm>
#include <cstdint>

#include "src/base/range.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// A mixture's tokens n, whole sequences of seq_len, each of which visits k = top_k of E experts. A
/// rank may have some of the experts alone, and the rows of their visits.
struct RouterShape {
  std::int64_t n_tokens = 1;
  std::int64_t seq_len = 1;
  std::int64_t n_experts = 1;
  std::int64_t top_k = 1;
  Range own = {};  ///< this rank's experts; empty: all
  Range own_experts() const { return own.empty() ? Range{0, n_experts} : own; }
  std::int64_t n_own() const { return own_experts().size(); }
  std::int64_t n_visits() const { return n_tokens * top_k; }
  /// Grouped rows at most: a token visits an expert once.
  std::int64_t n_rows() const { return n_tokens * std::min(top_k, n_own()); }
  std::int64_t n_sequences() const { return n_tokens / seq_len; }
};

/// Who goes where. No token is dropped: each visit of an own expert has a grouped row, expert by
/// expert, within one in the order of the tokens. R = shape.n_rows() is how many there may be, and
/// begins' last how many there are: all where all experts are this rank's.
struct Routing {
  MutView logits;   ///< (n, E) f32, what route() reads
  MutView experts;  ///< (n, k) i32, largest logit first; of equal ones the lower expert
  MutView weights;  ///< (n, k) f32, the softmax of the chosen logits
  MutView rows;     ///< (n, k) i32, the grouped row of a visit; -1 of another rank's expert
  MutView visits;   ///< (R) i32, the other way: token * k + choice of a grouped row
  MutView begins;   ///< (own + 1) i32, the e-th own expert has rows [begins[e], begins[e + 1])
  MutView counts;   ///< (n / seq_len, E) i32, a sequence's visits of each expert
};

/// Sets all but the logits. NaN among them gives weights of NaN, never a wrong place.
void route(Queue& queue, const RouterShape& shape, const Routing& routing);

/// Two losses that keep a router in order, both so weighed that they divide by the number of valid
/// labels like the sum of the tokens' losses, and microbatches of whole sequences add up:
///   balance = sum over sequences of (their valid labels) * E * sum over e of c[e] / (T k) * P[e]
///   z       = sum over tokens with a valid label of log(sum over e of exp(logit[e]))^2
/// with a sequence's T tokens, counts c and mean probabilities P, those of the softmax over all
/// experts. Where these are even, a sequence's factor is 1 (Fedus et al. 2021, equation 4; Zoph et
/// al. 2022, equation 5).
struct RouterLosses {
  double balance = 0;
  double z = 0;
};

/// What the router's losses are multiplied by in the loss that the backward is of.
struct RouterWeights {
  float balance = 0;
  float z = 0;
};

/// dlogits = the gradient through the weights of the visits, plus scale * that of
/// weights.balance * balance + weights.z * z, where counts have none.
///   dweights (n, k) f32   labels (n) i32
///   dlogits (n, E) f32, bf16 or f16, not `logits`: computed in f32 and rounded once
///   token_losses (n, 2) f32, set: what each token adds to balance and to z
void router_backward(Queue& queue, const RouterShape& shape, const Routing& routing, View dweights,
                     View labels, const RouterWeights& weights, float scale, MutView dlogits,
                     MutView token_losses);
/// Adds the sums over tokens to `losses` when it runs.
void add_router_losses(Queue& queue, View token_losses, RouterLosses& losses);

/// What a thread keeps after router_backward.
std::int64_t router_scratch_bytes(const RouterShape& shape);

}  // namespace llm
