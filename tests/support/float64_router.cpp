#include <cmath>

#include "tests/support/float64.h"

namespace llm::float64 {
namespace {

struct Token {
  std::size_t sequence;
  const double* logits;
  bool is_valid;
};

class Router {
 public:
  Router(const RouterShape& shape, const Doubles& logits, const Routed& routed)
      : n_experts(static_cast<std::size_t>(shape.n_experts)),
        top_k(static_cast<std::size_t>(shape.top_k)),
        seq_len(static_cast<std::size_t>(shape.seq_len)),
        logits_(logits),
        routed_(routed) {}
  Token token(std::size_t t) const {
    return {t / seq_len, logits_.data() + t * n_experts, routed_.labels[t] != ignored_label};
  }
  /// What the balance grows by where a token's probability of an expert does.
  double weight(std::size_t sequence, std::size_t expert) const {
    double n_valid = 0;
    for (std::size_t t = sequence * seq_len; t < (sequence + 1) * seq_len; ++t) {
      n_valid += token(t).is_valid ? 1 : 0;
    }
    const auto n = static_cast<double>(seq_len);
    const double part =
        routed_.counts[sequence * n_experts + expert] / (n * static_cast<double>(top_k));
    return n_valid * static_cast<double>(n_experts) * part / n;
  }

  std::size_t n_experts, top_k, seq_len;

 private:
  const Doubles& logits_;
  Routed routed_;
};

}  // namespace

Doubles router_weights(const RouterShape& shape, const Doubles& logits, const Doubles& experts) {
  const auto n_experts = static_cast<std::size_t>(shape.n_experts);
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  Doubles weights;
  for (std::size_t t = 0; t < experts.size() / top_k; ++t) {
    Doubles chosen;
    for (std::size_t j = 0; j < top_k; ++j) {
      const auto expert = static_cast<std::size_t>(experts[t * top_k + j]);
      chosen.push_back(logits[t * n_experts + expert]);
    }
    const double sum = log_sum_exp(chosen.data(), top_k);
    for (const double logit : chosen) weights.push_back(std::exp(logit - sum));
  }
  return weights;
}

Doubles router_losses(const RouterShape& shape, const Doubles& logits, const Routed& routed) {
  const Router router(shape, logits, routed);
  Doubles losses;
  for (std::size_t t = 0; t < routed.labels.size(); ++t) {
    const Token token = router.token(t);
    const double sum = log_sum_exp(token.logits, router.n_experts);
    double balance = 0;
    for (std::size_t e = 0; e < router.n_experts; ++e) {
      balance += router.weight(token.sequence, e) * std::exp(token.logits[e] - sum);
    }
    losses.push_back(balance);
    losses.push_back(token.is_valid ? sum * sum : 0);
  }
  return losses;
}

Doubles router_backward(const RouterShape& shape, const Doubles& logits, const Routed& routed,
                        const Doubles& dweights, const RouterWeights& weights, double scale) {
  const Router router(shape, logits, routed);
  const Doubles chosen = router_weights(shape, logits, routed.experts);
  Doubles dlogits(logits.size());
  for (std::size_t t = 0; t < routed.labels.size(); ++t) {
    const Token token = router.token(t);
    double* const out = dlogits.data() + t * router.n_experts;
    double mean = 0;
    for (std::size_t v = t * router.top_k; v < (t + 1) * router.top_k; ++v) {
      mean += chosen[v] * dweights[v];
    }
    for (std::size_t v = t * router.top_k; v < (t + 1) * router.top_k; ++v) {
      out[static_cast<std::size_t>(routed.experts[v])] += chosen[v] * (dweights[v] - mean);
    }
    const double sum = log_sum_exp(token.logits, router.n_experts);
    double balance = 0;
    for (std::size_t e = 0; e < router.n_experts; ++e) {
      balance += router.weight(token.sequence, e) * std::exp(token.logits[e] - sum);
    }
    const double dz = token.is_valid ? 2 * sum * double{weights.z} : 0;
    for (std::size_t e = 0; e < router.n_experts; ++e) {
      const double p = std::exp(token.logits[e] - sum);
      const double dbalance = router.weight(token.sequence, e) - balance;
      out[e] += scale * p * (double{weights.balance} * dbalance + dz);
    }
  }
  return dlogits;
}

}  // namespace llm::float64
