#include "tensor/ops/cross_entropy.h"

#include "src/base/error.h"
#include "tensor/ops/cross_entropy_kernels.h"
#include "tests/support/float64.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("zero logits give the loss ln V") {
  for (const std::int64_t n_classes : {1, 2, 256, 50'304}) {
    Queue queue;
    const Tensor logits({2, n_classes}),
        labels = ids_of({0, static_cast<std::int32_t>(n_classes - 1)});
    const Tensor losses({2});
    cross_entropy_forward(queue, logits, labels, losses);
    queue.finish();
    const double expected = std::log(static_cast<double>(n_classes));
    check_close(losses, Doubles{expected, expected}, 1e-7);
  }
}

TEST_CASE("the gradient is scale * (softmax - one-hot) and agrees with central differences") {
  for (const std::int64_t n_classes : {2, 17, 65}) {
    Queue queue;
    const Tensor logits = random_tensor({2, n_classes}, 1, 4), losses({2});
    const Tensor labels = ids_of({1, static_cast<std::int32_t>(n_classes - 1)});
    const Doubles at = doubles(logits);
    const auto width = static_cast<std::size_t>(n_classes);
    const auto loss = [&](const Doubles& x) {
      return float64::cross_entropy(x.data(), width, 1) +
             float64::cross_entropy(x.data() + width, width, n_classes - 1);
    };
    cross_entropy_forward_backward(queue, labels, 0.5f, logits, logits, losses);
    queue.finish();
    CHECK(double{losses[0]} + double{losses[1]} == Approx(loss(at)).epsilon(1e-6));
    Doubles expected = numeric_gradient(at, loss);
    for (double& e : expected) e *= 0.5;
    check_close(logits, expected, 5e-7);
  }
}

TEST_CASE("an ignored label has no loss and no gradient, and leaves its neighbours alone") {
  Queue queue;
  const Tensor logits = random_tensor({3, 9}, 1), losses({3}), alone = random_tensor({3, 9}, 1);
  const Tensor lone_losses({3}), labels = ids_of({4, ignored_label, 2}), all = ids_of({4, 0, 2});
  cross_entropy_forward_backward(queue, labels, 1, logits, logits, losses);
  queue.finish();
  CHECK(losses[1] == 0.0f);
  for (std::int64_t v = 9; v < 18; ++v) CHECK(logits[v] == 0.0f);
  cross_entropy_forward_backward(queue, all, 1, alone, alone, lone_losses);
  queue.finish();
  CHECK(same_bits(part(View(logits), 18, {9}), part(View(alone), 18, {9})));
  CHECK(losses[2] == lone_losses[2]);
}

TEST_CASE("huge logits do not overflow, and the loss alone has the fused loss's bits") {
  Queue queue;
  const Tensor logits = tensor_of({2, 3}, {1000, 1001, 999, -1e30f, 0, 1e30f}), a({2}), b({2});
  const Tensor labels = ids_of({1, 2});
  cross_entropy_forward(queue, logits, labels, a);
  cross_entropy_forward_backward(queue, labels, 1, logits, logits, b);
  queue.finish();
  CHECK(a[0] == Approx(std::log(1 + std::exp(-1.0) + std::exp(-2.0))).epsilon(1e-4));
  CHECK(a[1] == 0.0f);
  CHECK(same_bits(a, b));
}

TEST_CASE(
    "the fast row agrees with the definition at every odd size, and what is no number shows") {
  for (const std::int64_t n : odd_sizes) {
    if (n == 0) continue;
    const Tensor fast = random_tensor({n}, 1, 8), plain = random_tensor({n}, 1, 8);
    const float log_sum = plain::log_sum_exp(plain.data(), n);
    CHECK(fast::log_sum_exp(fast.data(), n) == Approx(log_sum).epsilon(1e-6));
    fast::scaled_softmax(fast.data(), n, log_sum, 2, fast.data());
    plain::scaled_softmax(plain.data(), n, log_sum, 2, plain.data());
    check_close(fast, plain, 1e-6);
    const Tensor broken = random_tensor({n}, 1);
    broken[n / 2] = NAN;
    CHECK(std::isnan(fast::log_sum_exp(broken.data(), n)));
  }
}

TEST_CASE("a label outside the vocabulary is refused when it runs, and named") {
  for (const std::int32_t label : {9, -1, -101}) {
    Queue queue;
    const Tensor logits({1, 9}), losses({1}), labels = ids_of({label});
    cross_entropy_forward(queue, logits, labels, losses);
    CHECK_THROWS_WITH(queue.finish(), Catch::Contains("is " + std::to_string(label)) &&
                                          Catch::Contains("vocabulary has 9"));
    Queue again;
    cross_entropy_forward_backward(again, labels, 1, logits, logits, losses);
    CHECK_THROWS_AS(again.finish(), DataError);
  }
}
