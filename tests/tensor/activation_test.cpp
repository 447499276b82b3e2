#include "tensor/ops/activation.h"

#include "src/base/error.h"
#include "tensor/ops/activation_kernels.h"
#include "tests/support/float64.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

const Activation every_activation[] = {Activation::gelu, Activation::gelu_tanh, Activation::silu,
                                       Activation::relu};

/// From -12 to 12 in uneven steps, the places where approximations meet included.
Tensor wide_range(std::int64_t n) {
  Tensor x({n});
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] =
        24.0f * static_cast<float>(i) / static_cast<float>(std::max<std::int64_t>(1, n - 1)) - 12;
  }
  if (n > 3) x[3] = 0;
  return x;
}

}  // namespace

TEST_CASE("activations have their known values") {
  Queue queue;
  const Tensor x = tensor_of({5}, {-3, -1, 0, 1, 3}), y({5});
  activation_forward(queue, Activation::gelu, x, y);
  queue.finish();
  check_close(y, Doubles{-0.00404969, -0.15865525, 0, 0.84134475, 2.99595031}, 1e-6);
  activation_forward(queue, Activation::gelu_tanh, x, y);
  queue.finish();
  check_close(y, Doubles{-0.00363739, -0.15880801, 0, 0.84119199, 2.99636261}, 1e-6);
  activation_forward(queue, Activation::silu, x, y);
  queue.finish();
  check_close(y, Doubles{-0.14227762, -0.26894142, 0, 0.73105858, 2.85772238}, 1e-6);
  activation_forward(queue, Activation::relu, x, y);
  queue.finish();
  check_close(y, Doubles{0, 0, 0, 1, 3}, 0);
}

TEST_CASE("activations and their slopes agree with float64 over a wide range") {
  for (const Activation f : every_activation) {
    for (const bool is_fast : {true, false}) {
      const std::int64_t n = 10'000;
      const Tensor x = wide_range(n), y({n}), dx({n}), ones({n});
      for (std::int64_t i = 0; i < n; ++i) ones[i] = 1;
      if (is_fast) {
        fast::activation_forward(f, x.data(), y.data(), n);
        fast::activation_backward(f, x.data(), ones.data(), dx.data(), n);
      } else {
        plain::activation_forward(f, x.data(), y.data(), n);
        plain::activation_backward(f, x.data(), ones.data(), dx.data(), n);
      }
      double worst_value = 0, worst_slope = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double at = x[i], step = 1e-5;
        if (f == Activation::relu && std::abs(at) < 1e-3) continue;  // no slope at the corner
        const double slope =
            (float64::activation(f, at + step) - float64::activation(f, at - step)) / (2 * step);
        const double size = std::max(1.0, std::abs(at));
        worst_value = std::max(worst_value, std::abs(y[i] - float64::activation(f, at)) / size);
        worst_slope = std::max(worst_slope, std::abs(dx[i] - slope) / size);
      }
      INFO("activation " << static_cast<int>(f) << (is_fast ? " fast" : " plain"));
      CHECK(worst_value < 3e-7);
      CHECK(worst_slope < 5e-7);
    }
  }
}

TEST_CASE("the fast activations agree with the definition at every odd size") {
  for (const Activation f : every_activation) {
    for (const std::int64_t n : odd_sizes) {
      const Tensor x = wide_range(n), up = random_tensor({n}, 1), dy = random_tensor({n}, 2);
      const Tensor a({n}), b({n}), c({n}), d({n});
      fast::activation_forward(f, x.data(), a.data(), n);
      plain::activation_forward(f, x.data(), b.data(), n);
      check_close(a, b, 2e-6);
      fast::activation_backward(f, x.data(), dy.data(), a.data(), n);
      plain::activation_backward(f, x.data(), dy.data(), b.data(), n);
      check_close(a, b, 2e-6);
      fast::gated_forward(f, x.data(), up.data(), a.data(), n);
      plain::gated_forward(f, x.data(), up.data(), b.data(), n);
      check_close(a, b, 2e-6);
      fast::gated_backward(f, x.data(), up.data(), dy.data(), a.data(), c.data(), n);
      plain::gated_backward(f, x.data(), up.data(), dy.data(), b.data(), d.data(), n);
      check_close(a, b, 2e-6);
      check_close(c, d, 2e-6);
    }
  }
}

TEST_CASE("an activation's bits depend on the element alone, not on its place") {
  const std::int64_t n = 77;
  const Tensor x = wide_range(n), dy = random_tensor({n}, 1), whole({n}), single({n});
  for (const Activation f : every_activation) {
    fast::activation_forward(f, x.data(), whole.data(), n);
    for (std::int64_t i = 0; i < n; ++i) fast::activation_forward(f, &x[i], &single[i], 1);
    CHECK(same_bits(whole, single));
    fast::activation_backward(f, x.data(), dy.data(), whole.data(), n);
    for (std::int64_t i = 0; i < n; ++i) fast::activation_backward(f, &x[i], &dy[i], &single[i], 1);
    CHECK(same_bits(whole, single));
  }
}

TEST_CASE("a gated unit's gradients agree with central differences in float64, in place too") {
  const std::int64_t n = 19;
  for (const Activation f : every_activation) {
    Queue queue;
    const Tensor gate = random_tensor({1, n}, 1, 3), up = random_tensor({1, n}, 2);
    const Tensor dy = random_tensor({1, n}, 3), y({1, n}), dgate({1, n});
    const Doubles gates = doubles(gate), ups = doubles(up), dys = doubles(dy);
    const auto loss = [&](const Doubles& g, const Doubles& u) {
      double sum = 0;
      for (std::size_t i = 0; i < g.size(); ++i)
        sum += float64::activation(f, g[i]) * u[i] * dys[i];
      return sum;
    };
    gated_forward(queue, f, gate, up, y);
    gated_backward(queue, f, gate, up, dy, dgate, dy);  // dup over dy
    queue.finish();
    CHECK(inner(doubles(y), dys) == Approx(loss(gates, ups)).epsilon(1e-5));
    check_close(dgate, numeric_gradient(gates, [&](const Doubles& at) { return loss(at, ups); }),
                2e-6);
    check_close(dy, numeric_gradient(ups, [&](const Doubles& at) { return loss(gates, at); }),
                2e-6);
  }
}

TEST_CASE("what is not a number stays so through every activation") {
  const Tensor x = tensor_of({2}, {NAN, 1}), y({2});
  for (const Activation f : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    fast::activation_forward(f, x.data(), y.data(), 2);
    CHECK(std::isnan(y[0]));
    CHECK_FALSE(std::isnan(y[1]));
  }
}

TEST_CASE("rows that are not there are neither read nor written by an activation") {
  const Tensor x = random_tensor({7, 5}, 1), up = random_tensor({7, 5}, 2);
  for (const std::int32_t n : {0, 3, 7}) {
    const Tensor count = ids_of({n});
    const Tensor whole({7, 5}), other({7, 5}), y({7, 5}), z({7, 5});
    for (const Tensor* t : {&y, &z}) std::fill_n(t->data(), 35, 77.0f);
    Queue queue;
    const auto check = [&](const Tensor& some, const Tensor& all) {
      queue.finish();
      CHECK(same_bits(some.data(), all.data(), n * 5));
      CHECK(std::count(some.data() + n * 5, some.data() + 35, 77.0f) == 35 - n * 5);
    };
    activation_forward(queue, Activation::silu, x, whole);
    activation_forward(queue, Activation::silu, x, y, count);
    check(y, whole);
    activation_backward(queue, Activation::silu, x, up, whole);
    activation_backward(queue, Activation::silu, x, up, y, count);
    check(y, whole);
    gated_forward(queue, Activation::silu, x, up, whole);
    gated_forward(queue, Activation::silu, x, up, y, count);
    check(y, whole);
    gated_backward(queue, Activation::silu, x, up, up, whole, other);
    gated_backward(queue, Activation::silu, x, up, up, y, z, count);
    check(y, whole);
    check(z, other);
  }
}

TEST_CASE("activations refuse sizes that differ") {
  Queue queue;
  const Tensor x({4}), y({5});
  CHECK_THROWS_AS(activation_forward(queue, Activation::gelu, x, y), ContractBroken);
  CHECK_THROWS_AS(activation_backward(queue, Activation::gelu, x, y, x), ContractBroken);
  CHECK_THROWS_AS(gated_forward(queue, Activation::silu, x, y, x), ContractBroken);
}
