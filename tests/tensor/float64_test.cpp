// The gradients of tests/support/float64.h, which kernels are measured against, are those of its
// values.
#include "tests/support/float64.h"

#include <algorithm>
#include <numeric>

#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

/// Central differences of float64 with steps of 1e-5 are right to about 1e-10.
constexpr double tolerance = 1e-8;

Doubles numbers(std::size_t n, std::uint64_t seed) {
  return doubles(random_tensor({static_cast<std::int64_t>(n)}, seed));
}

void check_equal(const Doubles& a, const Doubles& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    worst = difference <= worst ? worst : difference;
  }
  CHECK(worst <= tolerance);
}

std::vector<std::size_t> all_of(std::size_t n) {
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

}  // namespace

TEST_CASE("a float64 activation's slope is its value's") {
  for (const Activation f :
       {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
    const Doubles x = numbers(50, 1);
    Doubles slopes;
    for (const double at : x) slopes.push_back(float64::slope(f, at));
    check_equal(slopes, numeric_gradient(x, [&](const Doubles& at) {
                  double sum = 0;
                  for (const double x_i : at) sum += float64::activation(f, x_i);
                  return sum;
                }));
  }
}

TEST_CASE("the float64 norms' gradients are those of their values") {
  const Doubles x = numbers(15, 1), weight = numbers(5, 2), bias = numbers(5, 3),
                dy = numbers(15, 4);
  for (const bool is_rms : {false, true}) {
    const float64::Norm norm{is_rms, 1e-5};
    const float64::NormGradients of = float64::norm_backward(norm, x, weight, dy);
    const auto loss = [&](const Doubles& a, const Doubles& w, const Doubles& b) {
      return inner(float64::norm_forward(norm, a, w, b), dy);
    };
    check_equal(of.dx,
                numeric_gradient(x, [&](const Doubles& at) { return loss(at, weight, bias); }));
    check_equal(of.dweight,
                numeric_gradient(weight, [&](const Doubles& at) { return loss(x, at, bias); }));
    check_equal(of.dbias,
                numeric_gradient(bias, [&](const Doubles& at) { return loss(x, weight, at); }));
  }
}

TEST_CASE("the gradients of float64 linear layers of experts are those of their values") {
  const float64::Linear layer{{0, 2, 2, 7}, 4, 3};
  const Doubles x = numbers(28, 1), weight = numbers(36, 2), bias = numbers(9, 3),
                dy = numbers(21, 4);
  const auto loss = [&](const Doubles& a, const Doubles& w, const Doubles& b) {
    return inner(float64::linear_forward(layer, a, w, b, all_of(7)), dy);
  };
  check_equal(float64::linear_backward_input(layer, dy, weight, all_of(7)),
              numeric_gradient(x, [&](const Doubles& at) { return loss(at, weight, bias); }));
  check_equal(float64::linear_backward_weight(layer, x, dy, all_of(9)),
              numeric_gradient(weight, [&](const Doubles& at) { return loss(x, at, bias); }));
  check_equal(float64::linear_backward_bias(layer, dy),
              numeric_gradient(bias, [&](const Doubles& at) { return loss(x, weight, at); }));
}

TEST_CASE("a float64 linear layer of a sample leaves out all else") {
  const float64::Linear layer{{0, 7}, 4, 3};
  const Doubles y = float64::linear_forward(layer, numbers(28, 1), numbers(12, 2), {}, {0, 5});
  for (std::size_t i = 0; i < y.size(); ++i) {
    CHECK(std::isnan(y[i]) == (i / 3 != 0 && i / 3 != 5));
  }
}

TEST_CASE("float64 attention's gradient is that of its value, and turning back undoes a turn") {
  const AttentionShape shape{
      .batch = 2, .seq_len = 4, .n_heads = 4, .n_kv_heads = 2, .head_dim = 6, .first_head = 1};
  const Doubles qkv = numbers(8 * 48, 1), dout = numbers(8 * 24, 2);
  for (const float p : {0.0f, 0.3f}) {
    const Dropout dropout{.p = p, .seed = 3, .step = 1, .layer = 2, .site = 1};
    Doubles dqkv(qkv.size(), float64::left_out);
    for (const float64::HeadGroup group : float64::all_groups(shape)) {
      float64::attention_backward(shape, qkv, dout, dropout, group, dqkv);
    }
    check_equal(dqkv, numeric_gradient(qkv, [&](const Doubles& at) {
                  Doubles out(dout.size()), sums(32);
                  for (const float64::HeadGroup group : float64::all_groups(shape)) {
                    float64::attention_forward(shape, at, dropout, group, out, sums);
                  }
                  return inner(out, dout);
                }));
  }
  Doubles turned = qkv;
  float64::rope(shape, 1e4, 5, false, turned);
  CHECK(turned != qkv);
  float64::rope(shape, 1e4, 5, true, turned);
  check_equal(turned, qkv);
}

TEST_CASE("a float64 router's gradient is that of its weights and losses") {
  const RouterShape shape{.n_tokens = 6, .seq_len = 3, .n_experts = 4, .top_k = 2};
  const Doubles logits = numbers(24, 1), dweights = numbers(12, 2);
  const Doubles experts{0, 1, 2, 3, 3, 0, 1, 2, 0, 2, 1, 3}, counts{2, 1, 1, 2, 1, 2, 2, 1};
  const Doubles labels{1, 2, -100, 3, 4, 5};
  const float64::Routed routed{experts, counts, labels};
  const RouterWeights weights{.balance = 0.3f, .z = 0.2f};
  check_equal(float64::router_backward(shape, logits, routed, dweights, weights, 0.5),
              numeric_gradient(logits, [&](const Doubles& at) {
                const Doubles losses = float64::router_losses(shape, at, routed);
                double sum = inner(float64::router_weights(shape, at, experts), dweights);
                for (std::size_t i = 0; i < losses.size(); i += 2) {
                  sum += 0.5 * (double{0.3f} * losses[i] + double{0.2f} * losses[i + 1]);
                }
                return sum;
              }));
}
