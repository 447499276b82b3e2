#include "tensor/ops/attention.h"

#include "src/base/error.h"
#include "tensor/ops/attention_kernels.h"
#include "tests/support/float64.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

Doubles reference(const AttentionShape& s, const Doubles& qkv, const Dropout& dropout) {
  Doubles out(static_cast<std::size_t>(s.n_tokens() * s.n_heads * s.head_dim));
  Doubles sums(static_cast<std::size_t>(s.n_tokens() * s.n_heads));
  for (const float64::HeadGroup group : float64::all_groups(s)) {
    float64::attention_forward(s, qkv, dropout, group, out, sums);
  }
  return out;
}

struct Run {
  explicit Run(const AttentionShape& s, float scale = 1)
      : shape(s),
        qkv(random_tensor({s.n_tokens(), s.qkv_width()}, 1, scale)),
        dout(random_tensor({s.n_tokens(), s.n_heads * s.head_dim}, 2)),
        out({s.n_tokens(), s.n_heads * s.head_dim}),
        log_sum_exp({s.batch, s.n_heads, s.seq_len}),
        dqkv(random_tensor({s.n_tokens(), s.qkv_width()}, 3)) {}

  void ops(const Dropout& dropout) const {
    Queue queue;
    attention_forward(queue, shape, qkv, dropout, out, log_sum_exp);
    attention_backward(queue, shape, qkv, out, log_sum_exp, dout, dropout, dqkv);
    queue.finish();
  }
  void plain(const Dropout& dropout) const {
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.n_heads; ++h) {
        plain::attention_forward({shape, qkv.data(), dropout, out.data(), log_sum_exp.data()}, b,
                                 h);
      }
      for (std::int64_t h = 0; h < shape.n_kv_heads; ++h) {
        plain::attention_backward(
            {shape, qkv.data(), out.data(), log_sum_exp.data(), dout.data(), dropout, dqkv.data()},
            b, h);
      }
    }
  }

  AttentionShape shape;
  Tensor qkv, dout, out, log_sum_exp, dqkv;
};

const AttentionShape small_shapes[] = {
    {1, 1, 1, 1, 2}, {2, 5, 2, 2, 4}, {2, 6, 4, 2, 3}, {1, 7, 3, 1, 5}};

}  // namespace

TEST_CASE("the first token attends to itself alone, the second to both by softmax") {
  Queue queue;
  const AttentionShape shape{1, 2, 1, 1, 1};
  const Tensor qkv = tensor_of({2, 3}, {1, 1, 10, 2, 3, 20}), out({2, 1}), log_sum_exp({1, 1, 2});
  attention_forward(queue, shape, qkv, {}, out, log_sum_exp);
  queue.finish();
  CHECK(out[0] == Approx(10));
  const double a = std::exp(2.0), b = std::exp(6.0);
  CHECK(out[1] == Approx((10 * a + 20 * b) / (a + b)));
  CHECK(log_sum_exp[0] == Approx(1));
  CHECK(log_sum_exp[1] == Approx(std::log(a + b)));
}

TEST_CASE("attention and its gradient agree with float64, grouped heads and dropout included") {
  for (const AttentionShape& shape : small_shapes) {
    for (const float p : {0.0f, 0.3f}) {
      const Dropout dropout{.p = p, .seed = 4, .step = 1, .first_sample = 2, .layer = 1, .site = 0};
      const Doubles at = doubles(Run(shape).qkv), dout = doubles(Run(shape).dout);
      const Doubles expected = numeric_gradient(
          at, [&](const Doubles& x) { return inner(reference(shape, x, dropout), dout); });
      for (const bool is_plain : {false, true}) {
        const Run run(shape);
        is_plain ? run.plain(dropout) : run.ops(dropout);
        check_close(run.out, reference(shape, at, dropout), 1e-6);
        check_close(run.dqkv, expected, 3e-6);
      }
    }
  }
}

TEST_CASE("the fast attention agrees with the definition over several blocks of rows") {
  const AttentionShape shapes[] = {
      {1, 64, 1, 1, 16}, {1, 65, 2, 1, 17}, {2, 200, 4, 2, 64}, {1, 257, 1, 1, 80}};
  for (const AttentionShape& shape : shapes) {
    for (const float p : {0.0f, 0.2f}) {
      const Dropout dropout{.p = p, .seed = 8};
      const Run fast(shape, 2), plain(shape, 2);
      fast.ops(dropout);
      plain.plain(dropout);
      check_close(fast.out, plain.out, 2e-6);
      check_close(fast.log_sum_exp, plain.log_sum_exp, 1e-6);
      check_close(fast.dqkv, plain.dqkv, 1e-5);  // sums over 257 rows in another order
    }
  }
}

TEST_CASE("a sample's attention has the same bits in whatever batch it comes") {
  const Run both({2, 70, 2, 1, 16}), one({1, 70, 2, 1, 16});
  const Dropout dropout{.p = 0.2f, .seed = 8, .first_sample = 5};
  Dropout second = dropout;
  second.first_sample = 6;
  const std::int64_t n = one.qkv.size(), n_out = one.out.size();
  std::copy(both.qkv.data() + n, both.qkv.data() + 2 * n, one.qkv.data());
  std::copy(both.dout.data() + n_out, both.dout.data() + 2 * n_out, one.dout.data());
  both.ops(dropout);
  one.ops(second);
  CHECK(same_bits(both.out.data() + n_out, one.out.data(), n_out));
  CHECK(same_bits(both.dqkv.data() + n, one.dqkv.data(), n));
}

TEST_CASE("attention survives scores far beyond what exp can hold") {
  const Run run({1, 40, 1, 1, 8}, 200);
  run.ops({});
  for (std::int64_t i = 0; i < run.out.size(); ++i) REQUIRE(std::isfinite(run.out[i]));
  for (std::int64_t i = 0; i < run.dqkv.size(); ++i) REQUIRE(std::isfinite(run.dqkv[i]));
}

TEST_CASE("rotary positions turn pairs by their angle, leave values alone and turn back") {
  const AttentionShape shape{2, 9, 4, 2, 36};
  const Run run(shape);
  const Tensor before = random_tensor({shape.n_tokens(), shape.qkv_width()}, 1);
  Queue queue;
  rope_forward(queue, shape, 10000, run.qkv);
  queue.finish();
  Doubles expected = doubles(before);
  float64::rope(shape, 10000, 0, false, expected);
  check_close(run.qkv, expected, 3e-7);
  rope_backward(queue, shape, 10000, run.qkv);
  queue.finish();
  check_close(run.qkv, before, 3e-7);
}

TEST_CASE("the fast turn has the bits of the plain one at every width and place") {
  for (const std::int64_t half : {1, 3, 16, 17, 40}) {
    const Tensor fast = random_tensor({3, 2 * half}, 1), plain = random_tensor({3, 2 * half}, 1);
    const Tensor cos = random_tensor({half}, 2), sin = random_tensor({half}, 3);
    fast::rope({3, 2 * half, cos.data(), sin.data(), -1, fast.data()});
    plain::rope({3, 2 * half, cos.data(), sin.data(), -1, plain.data()});
    CHECK(same_bits(fast, plain));
  }
}

TEST_CASE("attention refuses shapes that do not fit when it is called") {
  Queue queue;
  const Run run({1, 4, 2, 2, 3});
  CHECK_THROWS_AS(rope_forward(queue, run.shape, 10000, run.qkv), ContractBroken);
  CHECK_THROWS_AS(attention_forward(queue, {1, 4, 3, 2, 3}, run.qkv, {}, run.out, run.log_sum_exp),
                  ContractBroken);
  CHECK_THROWS_AS(attention_forward(queue, run.shape, run.qkv, {}, run.qkv, run.log_sum_exp),
                  ContractBroken);
  CHECK(queue.empty());
}
