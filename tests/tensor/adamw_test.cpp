#include "tensor/ops/adamw.h"

#include "src/base/error.h"
#include "tensor/ops/adamw_kernels.h"
#include "tests/support/float64.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

AdamwStep step_of(std::int64_t t, float weight_decay) {
  return {.lr = 1e-3f,
          .beta1 = 0.9f,
          .beta2 = 0.999f,
          .epsilon = 1e-8f,
          .weight_decay = weight_decay,
          .t = t,
          .grad_scale = 1};
}

}  // namespace

TEST_CASE("AdamW's first step takes lr, and the decay besides: 0.9989 and 0.9990") {
  Queue queue;
  const Tensor g = tensor_of({1}, {0.5f}), w = tensor_of({1}, {1}), m({1}), v({1});
  adamw(queue, step_of(1, 0.1f), g, w, m, v);
  queue.finish();
  CHECK(w[0] == Approx(0.9989).margin(1e-7));
  CHECK(m[0] == Approx(0.05));
  CHECK(v[0] == Approx(0.00025).epsilon(1e-4));  // 1 - 0.999f
  const Tensor bias = tensor_of({1}, {1}), bias_m({1}), bias_v({1});
  adamw(queue, step_of(1, 0), g, bias, bias_m, bias_v);
  queue.finish();
  CHECK(bias[0] == Approx(0.9990).margin(1e-7));
}

TEST_CASE("many steps of AdamW agree with float64") {
  const std::int64_t n = 37;
  const Tensor w = random_tensor({n}, 1), m({n}), v({n});
  std::vector<float64::Adamw> expected;
  for (std::int64_t i = 0; i < n; ++i) expected.push_back({double{w[i]}});
  Queue queue;
  for (std::int64_t t = 1; t <= 50; ++t) {
    AdamwStep step = step_of(t, 0.1f);
    step.grad_scale = 0.25f;
    const Tensor g = random_tensor({n}, static_cast<std::uint64_t>(100 + t));
    adamw(queue, step, g, w, m, v);
    queue.finish();
    for (std::int64_t i = 0; i < n; ++i)
      expected[static_cast<std::size_t>(i)].step(step, double{g[i]});
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const float64::Adamw& e = expected[static_cast<std::size_t>(i)];
    CHECK(w[i] == Approx(e.w).margin(2e-6));  // 50 roundings of a number below 1
    CHECK(m[i] == Approx(e.m).margin(1e-7));
    CHECK(v[i] == Approx(e.v).margin(1e-7));
  }
}

TEST_CASE("the fast AdamW agrees with the definition, and a place in the array changes no bit") {
  for (const std::int64_t n : odd_sizes) {
    const AdamwFactors factors(step_of(3, 0.1f));
    const Tensor g = random_tensor({n}, 1);
    std::vector<Tensor> states[3];
    for (auto& state : states) {
      for (const std::uint64_t seed : {2u, 3u, 4u}) state.push_back(random_tensor({n}, seed));
      for (std::int64_t i = 0; i < n; ++i) state[2][i] = std::abs(state[2][i]);
    }
    const auto& [fast, plain, single] = states;
    fast::adamw(factors, g.data(), fast[0].data(), fast[1].data(), fast[2].data(), {}, n);
    plain::adamw(factors, g.data(), plain[0].data(), plain[1].data(), plain[2].data(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      fast::adamw(factors, &g[i], &single[0][i], &single[1][i], &single[2][i], {}, 1);
    }
    for (std::size_t k = 0; k < 3; ++k) {
      check_close(fast[k], plain[k], 3e-7);
      CHECK(same_bits(fast[k], single[k]));
    }
  }
}

TEST_CASE("a sum of squares is exact where the numbers are, chunk by chunk") {
  const std::int64_t n = 2 * norm_chunk_elements + 5;
  const Tensor x({n}), sums({3}, Dtype::f64);
  for (std::int64_t i = 0; i < n; ++i) x[i] = i % 2 == 0 ? 3.0f : -1.0f;
  Queue queue;
  sum_of_squares(queue, x, sums);
  queue.finish();
  const double* chunk = sums.view().as<double>();
  CHECK(chunk[0] == 5.0 * norm_chunk_elements);
  CHECK(chunk[1] == 5.0 * norm_chunk_elements);
  CHECK(chunk[2] == 29.0);
}

TEST_CASE("the fast sum of squares has the bits of the definition at every odd size and start") {
  for (const std::int64_t n : odd_sizes) {
    const Tensor x = random_tensor({n + 5}, 1);
    for (std::int64_t first = 0; first < 5; ++first) {
      CHECK(fast::sum_of_squares(&x[first], n) == plain::sum_of_squares(&x[first], n));
    }
  }
}

TEST_CASE("adamw and sum_of_squares refuse what does not fit") {
  Queue queue;
  const Tensor x({4}), y({5}), sums({2}, Dtype::f64);
  CHECK_THROWS_AS(adamw(queue, step_of(1, 0), y, x, x, x), ContractBroken);
  CHECK_THROWS_AS(adamw(queue, step_of(0, 0), x, x, x, x), ContractBroken);
  CHECK_THROWS_AS(sum_of_squares(queue, x, sums), ContractBroken);
  CHECK_THROWS_AS(sum_of_squares(queue, x, y), ContractBroken);
}
