#include "tensor/ops/router.h"

#include <algorithm>
#include <cmath>

#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/scratch.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

void check(const RouterShape& shape, const Routing& routing) {
  CHECK_CONTRACT(shape.seq_len > 0 && shape.n_tokens % shape.seq_len == 0,
                 "a router's tokens are whole sequences");
  CHECK_CONTRACT(1 <= shape.top_k && shape.top_k <= shape.n_experts,
                 "a token visits at least one expert and each at most once");
  expect(routing.logits, "logits", {shape.n_tokens, shape.n_experts});
  expect(routing.experts, "experts", Dtype::i32, {shape.n_tokens, shape.top_k});
  expect(routing.weights, "weights", {shape.n_tokens, shape.top_k});
  expect(routing.rows, "rows", Dtype::i32, {shape.n_tokens, shape.top_k});
  expect(routing.visits, "visits", Dtype::i32, {shape.n_rows()});
  expect(routing.begins, "begins", Dtype::i32, {shape.n_own() + 1});
  expect(routing.counts, "counts", Dtype::i32, {shape.n_sequences(), shape.n_experts});
}

bool is_among(std::int32_t expert, const std::int32_t* experts, std::int64_t n) {
  return std::find(experts, experts + n, expert) != experts + n;
}

/// The k experts of the largest logits, in their order.
void choose(const float* logits, const RouterShape& shape, std::int32_t* experts) {
  const auto n_experts = static_cast<std::int32_t>(shape.n_experts);
  for (std::int64_t j = 0; j < shape.top_k; ++j) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < n_experts; ++e) {
      if (is_among(e, experts, j)) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    experts[j] = best;
  }
}

/// y[i] = softmax of x[index[i]], of which the first is the largest.
void softmax_of(const float* x, const std::int32_t* index, std::int64_t n, float* y) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[index[i]] - x[index[0]]);
  for (std::int64_t i = 0; i < n; ++i) y[i] /= sum;
}

/// Rows in the order of own experts and, within one, of tokens: a counting sort.
void plan_rows(const RouterShape& shape, const Routing& routing) {
  const auto* const experts = routing.experts.as<std::int32_t>();
  auto* const begins = routing.begins.as<std::int32_t>();
  auto* const counts = routing.counts.as<std::int32_t>();
  auto* const rows = routing.rows.as<std::int32_t>();
  auto* const visits = routing.visits.as<std::int32_t>();
  const std::int64_t per_sequence = shape.seq_len * shape.top_k;
  const Range own = shape.own_experts();
  const auto is_own = [&](std::int64_t v) {
    return own.begin <= experts[v] && experts[v] < own.end;
  };
  std::fill_n(counts, routing.counts.n_elements(), 0);
  std::fill_n(begins, own.size() + 1, 0);
  for (std::int64_t v = 0; v < shape.n_visits(); ++v) {
    ++counts[v / per_sequence * shape.n_experts + experts[v]];
    if (is_own(v)) ++begins[experts[v] - own.begin + 1];
  }
  for (std::int64_t e = 0; e < own.size(); ++e) begins[e + 1] += begins[e];
  for (std::int64_t v = 0; v < shape.n_visits(); ++v) {
    rows[v] = is_own(v) ? begins[experts[v] - own.begin]++ : -1;
    if (rows[v] >= 0) visits[rows[v]] = static_cast<std::int32_t>(v);
  }
  // Each begin has moved to its expert's end, which is the next one's begin.
  std::copy_backward(begins, begins + own.size(), begins + own.size() + 1);
  begins[0] = 0;
}

struct Backward {
  RouterShape shape;
  Routing routing;
  View dweights, labels;
  RouterWeights weights;
  float scale;
  MutView dlogits, token_losses;

  bool is_valid(std::int64_t token) const {
    return labels.as<std::int32_t>()[token] != ignored_label;
  }
  float per_count(std::int64_t sequence) const;
  void run(std::int64_t sequence, Range tokens) const;
  void add_choice(std::int64_t token, float* dlogits_of) const;
  void add_losses(std::int64_t token, float count_factor, float* p, float* dlogits_of) const;
};

/// What a visit of the sequence's adds to its balance for each unit of probability of one token.
float Backward::per_count(std::int64_t sequence) const {
  const std::int64_t first = sequence * shape.seq_len;
  std::int64_t n_valid = 0;
  for (std::int64_t t = first; t < first + shape.seq_len; ++t) n_valid += is_valid(t) ? 1 : 0;
  return static_cast<float>(static_cast<double>(n_valid * shape.n_experts) /
                            static_cast<double>(shape.seq_len * shape.seq_len * shape.top_k));
}

/// Of a softmax over the chosen: w (dw - sum of w dw).
void Backward::add_choice(std::int64_t token, float* dlogits_of) const {
  const std::int64_t begin = token * shape.top_k;
  const float* const w = routing.weights.as<float>() + begin;
  const float* const dw = dweights.as<float>() + begin;
  const auto* const experts = routing.experts.as<std::int32_t>() + begin;
  float sum = 0;
  for (std::int64_t j = 0; j < shape.top_k; ++j) sum += w[j] * dw[j];
  for (std::int64_t j = 0; j < shape.top_k; ++j) dlogits_of[experts[j]] += w[j] * (dw[j] - sum);
}

/// Of a softmax over all experts: p (c - sum of p c), and of z: 2 log_sum p. `p` is scratch.
void Backward::add_losses(std::int64_t token, float count_factor, float* p,
                          float* dlogits_of) const {
  const std::int64_t n_experts = shape.n_experts;
  const float* const logits = routing.logits.as<float>() + token * n_experts;
  const auto* const counts = routing.counts.as<std::int32_t>() + token / shape.seq_len * n_experts;
  const float max = *std::max_element(logits, logits + n_experts);
  float sum = 0;
  for (std::int64_t e = 0; e < n_experts; ++e) sum += p[e] = std::exp(logits[e] - max);
  float mean_count = 0;
  for (std::int64_t e = 0; e < n_experts; ++e) {
    p[e] /= sum;
    mean_count += p[e] * static_cast<float>(counts[e]);
  }
  const float log_sum = is_valid(token) ? max + std::log(sum) : 0;
  float* const losses = token_losses.as<float>() + 2 * token;
  losses[0] = count_factor * mean_count;
  losses[1] = log_sum * log_sum;
  const float balance = scale * weights.balance * count_factor;
  const float z = scale * weights.z * 2 * log_sum;
  for (std::int64_t e = 0; e < n_experts; ++e) {
    dlogits_of[e] += p[e] * (balance * (static_cast<float>(counts[e]) - mean_count) + z);
  }
}

void Backward::run(std::int64_t sequence, Range tokens) const {
  static thread_local Scratch<float> scratch;
  float* const sums = at_least(scratch, 2 * shape.n_experts);
  const float count_factor = per_count(sequence);
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    std::fill_n(sums, shape.n_experts, 0.0f);
    add_choice(t, sums);
    add_losses(t, count_factor, sums + shape.n_experts, sums);
    fast::convert(sums, MutElements(dlogits) + t * shape.n_experts, shape.n_experts);
  }
}

/// Of a token's logits in one pass: an exponential costs as much as some bytes.
RowCut cut_of(const RouterShape& shape, std::int64_t n_rows) {
  return cut_by_bytes(n_rows, 64 * shape.n_experts);
}

}  // namespace

void route(Queue& queue, const RouterShape& shape, const Routing& routing) {
  check(shape, routing);
  if (issued(queue, "route", &cuda::OpCalls::route, shape, routing)) return;
  const RowCut cut = cut_of(shape, shape.n_tokens);
  queue.tiles("route", cut.n_tiles(), [=](std::int64_t tile) {
    const Range tokens = cut.rows(tile);
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      const float* const logits = routing.logits.as<float>() + t * shape.n_experts;
      auto* const experts = routing.experts.as<std::int32_t>() + t * shape.top_k;
      choose(logits, shape, experts);
      softmax_of(logits, experts, shape.top_k, routing.weights.as<float>() + t * shape.top_k);
    }
  });
  queue.work("route_rows", [=] { plan_rows(shape, routing); });
}

void router_backward(Queue& queue, const RouterShape& shape, const Routing& routing, View dweights,
                     View labels, const RouterWeights& weights, float scale, MutView dlogits,
                     MutView token_losses) {
  check(shape, routing);
  expect(dweights, "dweights", {shape.n_tokens, shape.top_k});
  expect_elements(labels, "labels", shape.n_tokens, Dtype::i32);
  expect(dlogits, "dlogits", compute_dtype(dlogits, "dlogits"), {shape.n_tokens, shape.n_experts});
  expect(token_losses, "token_losses", {shape.n_tokens, 2});
  if (issued(queue, "router_backward", &cuda::OpCalls::router_backward, shape, routing, dweights,
             labels, weights, scale, dlogits, token_losses))
    return;
  const Backward backward{shape, routing, dweights, labels, weights, scale, dlogits, token_losses};
  const RowCut cut = cut_of(shape, shape.seq_len);
  queue.tiles("router_backward", shape.n_sequences() * cut.n_tiles(), [=](std::int64_t tile) {
    const std::int64_t sequence = tile / cut.n_tiles();
    const Range places = cut.rows(tile % cut.n_tiles());
    const std::int64_t first = sequence * shape.seq_len;
    backward.run(sequence, {first + places.begin, first + places.end});
  });
}

void add_router_losses(Queue& queue, View token_losses, RouterLosses& losses) {
  expect_matrix(token_losses, "token_losses");
  queue.read_back("router_losses", token_losses, [&losses](View read) {
    const float* const each = read.as<float>();
    for (std::int64_t t = 0; t < read.shape()[0]; ++t) {
      losses.balance += double{each[2 * t]};
      losses.z += double{each[2 * t + 1]};
    }
  });
}

std::int64_t router_scratch_bytes(const RouterShape& shape) {
  return 2 * shape.n_experts * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace llm
