#include "tensor/ops/router.h"

#include <algorithm>
#include <set>

#include "src/base/error.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/grouped_rows.h"
#include "tests/support/float64.h"
#include "tests/tensor/router_support.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

Doubles whole_numbers(const View& x) {
  const auto* const begin = x.as<std::int32_t>();
  return Doubles(begin, begin + x.n_elements());
}

/// The router's losses in float64, with the choice and the counts of `routed`.
RouterLosses losses_of(const Routed& routed, const Doubles& logits, const Tensor& labels) {
  const Doubles experts = whole_numbers(routed.routing.experts);
  const Doubles counts = whole_numbers(routed.routing.counts), of_tokens = whole_numbers(labels);
  const Doubles each = float64::router_losses(routed.shape, logits, {experts, counts, of_tokens});
  RouterLosses losses;
  for (std::size_t i = 0; i < each.size(); i += 2) {
    losses.balance += each[i];
    losses.z += each[i + 1];
  }
  return losses;
}

/// The softmax of the chosen logits, in float64.
Doubles weights_of(const Routed& routed, const Doubles& logits) {
  return float64::router_weights(routed.shape, logits, whole_numbers(routed.routing.experts));
}

/// Labels of which every third is ignored.
Tensor some_labels(std::int64_t n) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < n; ++i) labels.push_back(i % 3 == 2 ? ignored_label : 1);
  return ids_of(labels);
}

}  // namespace

TEST_CASE("a token visits the experts of its largest logits, the lower one first among equals") {
  const Routed routed({.n_tokens = 4, .seq_len = 2, .n_experts = 4, .top_k = 2},
                      tensor_of({4, 4}, {0, 2, 1, 2,               // 1 and 3, equal
                                         5, 0, 0, 0,               // 0, then the first of equals
                                         0, 0, 0, std::log(3.0f),  // 3, then 0
                                         -1, -1, -1, -1}));
  const std::vector<std::int32_t> experts{1, 3, 0, 1, 3, 0, 0, 1};
  for (std::int64_t v = 0; v < 8; ++v)
    CHECK(routed.expert(v / 2, v % 2) == experts[static_cast<std::size_t>(v)]);
  const float* const w = routed.routing.weights.as<float>();
  CHECK(w[0] == 0.5f);
  CHECK(w[2] == Approx(std::exp(5.0) / (std::exp(5.0) + 1)));
  CHECK(w[4] == Approx(0.75));
  CHECK(w[5] == Approx(0.25));
  // Expert 0 has tokens 1, 2, 3; expert 1 has 0, 1, 3; expert 3 has 0, 2.
  const std::vector<std::int32_t> tokens{1, 2, 3, 0, 1, 3, 0, 2};
  for (std::int64_t r = 0; r < 8; ++r)
    CHECK(routed.visit(r) / 2 == tokens[static_cast<std::size_t>(r)]);
  const std::vector<std::int32_t> begins{0, 3, 6, 6, 8};
  for (std::int64_t e = 0; e < 5; ++e)
    CHECK(routed.begin(e) == begins[static_cast<std::size_t>(e)]);
  CHECK(routed.count(0, 0) == 1);
  CHECK(routed.count(0, 1) == 2);
  CHECK(routed.count(1, 0) == 2);
  CHECK(routed.count(1, 2) == 0);
}

TEST_CASE("grouped rows are a permutation of the visits, by expert and within one by token") {
  for (const std::int64_t n_experts : {1, 2, 3, 8, 61}) {
    for (const std::int64_t top_k : {std::int64_t{1}, std::int64_t{2}, n_experts}) {
      if (top_k > n_experts) continue;
      const RouterShape shape{
          .n_tokens = 90, .seq_len = 30, .n_experts = n_experts, .top_k = top_k};
      INFO(n_experts << " experts, " << top_k << " chosen");
      const Routed routed(shape, random_tensor({90, n_experts}, 3));
      std::set<std::int32_t> seen;
      for (std::int64_t e = 0; e < n_experts; ++e) {
        for (std::int64_t r = routed.begin(e); r < routed.begin(e + 1); ++r) {
          const std::int32_t visit = routed.visit(r);
          seen.insert(visit);
          CHECK(routed.expert(visit / top_k, visit % top_k) == e);
          CHECK(routed.routing.rows.as<std::int32_t>()[visit] == r);
          if (r > routed.begin(e)) CHECK(routed.visit(r - 1) < visit);
        }
      }
      CHECK(static_cast<std::int64_t>(seen.size()) == shape.n_rows());
      std::int64_t n_counted = 0;
      for (std::int64_t i = 0; i < 3 * n_experts; ++i) n_counted += routed.count(0, i);
      CHECK(n_counted == shape.n_rows());
    }
  }
}

TEST_CASE("logits that are not numbers still give a permutation") {
  Tensor logits({4, 3});
  std::fill_n(logits.data(), 12, NAN);
  const Routed routed({.n_tokens = 4, .seq_len = 4, .n_experts = 3, .top_k = 2}, std::move(logits));
  CHECK(routed.begin(3) == 8);
  for (std::int64_t t = 0; t < 4; ++t) CHECK(routed.expert(t, 0) != routed.expert(t, 1));
  CHECK(std::isnan(routed.routing.weights.as<float>()[0]));
}

TEST_CASE("the router's gradient is that of the weights, plus c times those of balance and z") {
  const RouterWeights choices[] = {{0, 0}, {0.5f, 0}, {0, 0.25f}, {0.5f, 0.25f}};
  for (const std::int64_t top_k : {1, 2, 4}) {
    for (const RouterWeights& c : choices) {
      const RouterShape shape{.n_tokens = 15, .seq_len = 5, .n_experts = 4, .top_k = top_k};
      const Tensor logits = random_tensor({15, 4}, 7, 2), dw = random_tensor({15, top_k}, 8);
      const Tensor labels = some_labels(15);
      const Routed routed(shape, converted(logits, Dtype::f32));
      const float scale = 0.5f;
      const Tensor dlogits({15, 4}), token_losses({15, 2});
      RouterLosses losses;
      Queue queue;
      router_backward(queue, shape, routed.routing, dw, labels, c, scale, dlogits, token_losses);
      add_router_losses(queue, token_losses, losses);
      queue.finish();
      const Doubles at = doubles(logits);
      const auto loss = [&](const Doubles& x) {
        const RouterLosses of = losses_of(routed, x, labels);
        return inner(weights_of(routed, x), doubles(dw)) +
               double{scale} * (double{c.balance} * of.balance + double{c.z} * of.z);
      };
      INFO(top_k << " chosen, balance " << c.balance << ", z " << c.z);
      check_close(dlogits, numeric_gradient(at, loss), 2e-6);
      CHECK(losses.balance == Approx(losses_of(routed, at, labels).balance).epsilon(1e-6));
      CHECK(losses.z == Approx(losses_of(routed, at, labels).z).epsilon(1e-6));
    }
  }
}

TEST_CASE("a router of even probabilities has a balance of exactly 1 a valid token") {
  for (const std::int64_t top_k : {1, 2, 8}) {
    const RouterShape shape{.n_tokens = 48, .seq_len = 16, .n_experts = 8, .top_k = top_k};
    const Routed routed(shape, Tensor({48, 8}));
    std::vector<std::int32_t> ids(48, 3);
    for (std::size_t i = 10; i < 21; ++i) ids[i] = ignored_label;  // of the first two sequences
    const Tensor labels = ids_of(ids), dw({48, top_k}), dlogits({48, 8}), token_losses({48, 2});
    RouterLosses losses;
    Queue queue;
    router_backward(queue, shape, routed.routing, dw, labels, {}, 1, dlogits, token_losses);
    add_router_losses(queue, token_losses, losses);
    queue.finish();
    CHECK(losses.balance == 37);
    CHECK(losses.z == Approx(37 * std::log(8.0) * std::log(8.0)));
  }
}

TEST_CASE("a microbatch of whole sequences has their gradients' bits, and their losses add up") {
  const RouterShape all{.n_tokens = 24, .seq_len = 6, .n_experts = 5, .top_k = 2};
  const RouterShape some{.n_tokens = 12, .seq_len = 6, .n_experts = 5, .top_k = 2};
  const Tensor logits = random_tensor({24, 5}, 1), dw = random_tensor({24, 2}, 2);
  const Tensor labels = some_labels(24), dlogits({24, 5}), token_losses({24, 2});
  const Routed routed(all, converted(logits, Dtype::f32));
  Queue queue;
  RouterLosses whole, parts;
  router_backward(queue, all, routed.routing, dw, labels, {1, 1}, 1, dlogits, token_losses);
  add_router_losses(queue, token_losses, whole);
  queue.finish();
  for (const std::int64_t first : {0, 12}) {
    const Routed half(some, converted(part(View(logits), first * 5, {12, 5}), Dtype::f32));
    const Tensor half_dlogits({12, 5}), half_losses({12, 2});
    router_backward(queue, some, half.routing, part(View(dw), first * 2, {12, 2}),
                    part(View(labels), first, {12}), {1, 1}, 1, half_dlogits, half_losses);
    add_router_losses(queue, half_losses, parts);
    queue.finish();
    CHECK(same_bits(half_dlogits.data(), dlogits.data() + first * 5, 60));
  }
  CHECK(parts.balance == Approx(whole.balance).epsilon(1e-12));
  CHECK(parts.z == Approx(whole.z).epsilon(1e-12));
}

TEST_CASE("grouping rows and adding them up again are each other's gradients, by hand") {
  const RouterShape shape{.n_tokens = 2, .seq_len = 2, .n_experts = 2, .top_k = 2};
  const Routed routed(shape, tensor_of({2, 2}, {0, std::log(3.0f), 0, 0}));
  const Tensor x = tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}), rows({4, 3}), y({2, 3});
  Queue queue;
  group_rows(queue, shape, routed.routing, x, rows);
  combine_rows(queue, shape, routed.routing, Weigh::no, rows, y);
  queue.finish();
  check_close(rows, Doubles{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, 0);
  check_close(y, Doubles{2, 4, 6, 8, 10, 12}, 0);
  // Expert 0's rows become 8, expert 1's 4: token 0 weighs them 1/4 and 3/4, token 1 halves.
  for (std::int64_t i = 0; i < 12; ++i) rows[i] = i < 6 ? 8 : 4;
  combine_rows(queue, shape, routed.routing, Weigh::yes, rows, y);
  queue.finish();
  check_close(y, Doubles{5, 5, 5, 6, 6, 6}, 1e-6);
  const Tensor dy = tensor_of({2, 3}, {1, 0, 2, 1, 1, 1}), drows({4, 3}), dweights({2, 2});
  combine_rows_backward(queue, shape, routed.routing, rows, dy, drows, dweights);
  queue.finish();
  check_close(dweights, Doubles{12, 24, 24, 12}, 0);  // by choice: token 0's first is expert 1
  check_close(drows, Doubles{0.25, 0, 0.5, 0.5, 0.5, 0.5, 0.75, 0, 1.5, 0.5, 0.5, 0.5}, 1e-6);
}

TEST_CASE("ranks with some of the experts each have the rows and gradients of their visits") {
  const RouterShape all{.n_tokens = 24, .seq_len = 6, .n_experts = 6, .top_k = 3};
  const Tensor x = random_tensor({24, 5}, 2), out = random_tensor({72, 5}, 3),
               dy = random_tensor({24, 5}, 4);
  const Routed whole(all, random_tensor({24, 6}, 1));
  const Tensor rows({72, 5}), y({24, 5}), dout({72, 5}), dweights({24, 3});
  Queue queue;
  group_rows(queue, all, whole.routing, x, rows);
  combine_rows(queue, all, whole.routing, Weigh::yes, out, y);
  combine_rows_backward(queue, all, whole.routing, out, dy, dout, dweights);
  queue.finish();
  Doubles sum(24 * 5), dsum(24 * 3);
  std::int64_t first = 0;  // the part's first row among all
  for (const Range own : {Range{0, 2}, {2, 3}, {3, 6}}) {
    RouterShape shape = all;
    shape.own = own;
    CHECK(shape.n_rows() == 24 * std::min<std::int64_t>(3, own.size()));
    const Routed routed(shape, random_tensor({24, 6}, 1));
    const std::int64_t n = routed.begin(own.size());
    CHECK(n == whole.begin(own.end) - whole.begin(own.begin));
    CHECK(same_bits(routed.routing.counts, whole.routing.counts));
    const Tensor some_rows({shape.n_rows(), 5}), some_out({shape.n_rows(), 5});
    std::copy_n(out.data() + first * 5, n * 5, some_out.data());
    const Tensor some_y({24, 5}), some_dout({shape.n_rows(), 5}), some_dweights({24, 3});
    group_rows(queue, shape, routed.routing, x, some_rows);
    combine_rows(queue, shape, routed.routing, Weigh::yes, some_out, some_y);
    combine_rows_backward(queue, shape, routed.routing, some_out, dy, some_dout, some_dweights);
    queue.finish();
    CHECK(same_bits(some_rows.data(), rows.data() + first * 5, n * 5));
    CHECK(same_bits(some_dout.data(), dout.data() + first * 5, n * 5));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += some_y.data()[i];
    for (std::size_t i = 0; i < dsum.size(); ++i) dsum[i] += some_dweights.data()[i];
    first += n;
  }
  check_close(y, sum, 1e-6);
  check_close(dweights, dsum, 0);
}

TEST_CASE("grouped rows in a low dtype are the rounded f32 ones") {
  const RouterShape shape{.n_tokens = 40, .seq_len = 8, .n_experts = 6, .top_k = 3};
  const Routed routed(shape, random_tensor({40, 6}, 4));
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const Tensor x = converted(random_tensor({120, 33}, 5), dtype);
    const Tensor dy = converted(random_tensor({40, 33}, 6), dtype);
    const Tensor wide_x = converted(x, Dtype::f32), wide_dy = converted(dy, Dtype::f32);
    const Tensor y({40, 33}, dtype), wide_y({40, 33}), dx({120, 33}, dtype), wide_dx({120, 33});
    const Tensor dw({40, 3}), wide_dw({40, 3});
    Queue queue;
    for (const Weigh weigh : {Weigh::no, Weigh::yes}) {
      combine_rows(queue, shape, routed.routing, weigh, x, y);
      combine_rows(queue, shape, routed.routing, weigh, wide_x, wide_y);
      queue.finish();
      CHECK(same_bits(y, converted(wide_y, dtype)));
    }
    combine_rows_backward(queue, shape, routed.routing, x, dy, dx, dw);
    combine_rows_backward(queue, shape, routed.routing, wide_x, wide_dy, wide_dx, wide_dw);
    const Tensor labels = some_labels(40), losses({40, 2});
    const Tensor dlogits({40, 6}, dtype), wide_dlogits({40, 6});
    router_backward(queue, shape, routed.routing, dw, labels, {1, 1}, 1, dlogits, losses);
    router_backward(queue, shape, routed.routing, dw, labels, {1, 1}, 1, wide_dlogits, losses);
    queue.finish();
    CHECK(same_bits(dx, converted(wide_dx, dtype)));
    CHECK(same_bits(dw, wide_dw));
    CHECK(same_bits(dlogits, converted(wide_dlogits, dtype)));
  }
}

TEST_CASE("a router refuses shapes that do not fit when it is called") {
  const RouterShape shape{.n_tokens = 4, .seq_len = 2, .n_experts = 3, .top_k = 2};
  const Routed routed(shape, random_tensor({4, 3}, 1));
  Queue queue;
  RouterShape more = shape;
  more.top_k = 4;
  CHECK_THROWS_AS(route(queue, more, routed.routing), ContractBroken);
  RouterShape cut = shape;
  cut.seq_len = 3;
  CHECK_THROWS_AS(route(queue, cut, routed.routing), ContractBroken);
  CHECK_THROWS_AS(group_rows(queue, shape, routed.routing, Tensor({4, 5}), Tensor({4, 5})),
                  ContractBroken);
  CHECK(queue.empty());
}
