// Ops in bf16 and f16 against the same op in f32 on the same numbers: arithmetic is in f32 and a
// stored value is rounded once, so the results have the bits of the rounded f32 result. What f32
// ops are held against, the other tests say.
#include <limits>

#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/norm.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

const Dtype low_dtypes[] = {Dtype::bf16, Dtype::f16};

/// The same numbers in a low dtype and in f32.
struct Both {
  Both(const Tensor& x, Dtype dtype) : low(converted(x, dtype)), wide(converted(low, Dtype::f32)) {}
  Both(const Both& other)
      : low(converted(other.low, other.low.view().dtype())),
        wide(converted(other.wide, Dtype::f32)) {}
  Both& operator=(Both other) {
    low = std::move(other.low);
    wide = std::move(other.wide);
    return *this;
  }
  /// Whether the low one is the rounded f32 one.
  bool agree() const { return same_bits(low, converted(wide, low.view().dtype())); }
  Tensor low, wide;
};

Both random_both(Shape shape, Dtype dtype, std::uint64_t seed, float scale = 1) {
  return Both(random_tensor(shape, seed, scale), dtype);
}

/// |a - b| over the norm of b.
double relative_distance(const View& a, const View& b) {
  const Tensor wide_a = converted(a, Dtype::f32), wide_b = converted(b, Dtype::f32);
  double distance = 0, size = 0;
  for (std::int64_t i = 0; i < wide_a.size(); ++i) {
    const double difference = double{wide_a[i]} - double{wide_b[i]};
    distance += difference * difference;
    size += double{wide_b[i]} * double{wide_b[i]};
  }
  return std::sqrt(distance / std::max(size, 1e-30));
}

/// A rounding's part of a number: half of the last place.
double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11;
}

std::vector<ProductKernel> product_kernels() {
  if (!has_fast_bf16()) return {ProductKernel::f32_copies};
  return {ProductKernel::f32_copies, ProductKernel::bf16};
}

}  // namespace

TEST_CASE("activations and gates in a low dtype are the rounded f32 ones") {
  for (const Dtype dtype : low_dtypes) {
    for (const Activation f :
         {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
      for (const std::int64_t n : odd_sizes) {
        Queue queue;
        Both x = random_both({n}, dtype, 1, 6), up = random_both({n}, dtype, 2);
        Both dy = random_both({n}, dtype, 3), y = dy, dx = dy, dup = dy;
        activation_forward(queue, f, x.low, y.low);
        activation_forward(queue, f, x.wide, y.wide);
        activation_backward(queue, f, x.low, dy.low, dx.low);
        activation_backward(queue, f, x.wide, dy.wide, dx.wide);
        queue.finish();
        CHECK((y.agree() && dx.agree()));
        gated_forward(queue, f, x.low, up.low, y.low);
        gated_forward(queue, f, x.wide, up.wide, y.wide);
        gated_backward(queue, f, x.low, up.low, dy.low, dx.low, dup.low);
        gated_backward(queue, f, x.wide, up.wide, dy.wide, dx.wide, dup.wide);
        queue.finish();
        CHECK((y.agree() && dx.agree() && dup.agree()));
      }
    }
  }
}

TEST_CASE("norms in a low dtype are the rounded f32 ones, and their vectors stay f32") {
  for (const Dtype dtype : low_dtypes) {
    for (const Write write : {Write::set, Write::add}) {
      const std::int64_t n = 19, width = 37;
      Queue queue;
      const Tensor weight = random_tensor({width}, 1), bias = random_tensor({width}, 2);
      Both x = random_both({n, width}, dtype, 3), dy = random_both({n, width}, dtype, 4);
      Both y = x, dx = dy;
      const Tensor mean({n}), rstd({n}), dweight({width}), dbias({width});
      const Tensor mean2({n}), rstd2({n}), dweight2({width}), dbias2({width});
      layer_norm_forward(queue, x.low, weight, bias, 1e-5f, y.low, mean, rstd);
      layer_norm_forward(queue, x.wide, weight, bias, 1e-5f, y.wide, mean2, rstd2);
      layer_norm_backward(queue, x.low, weight, mean, rstd, dy.low, write, dx.low, Write::set,
                          dweight, dbias);
      layer_norm_backward(queue, x.wide, weight, mean, rstd, dy.wide, write, dx.wide, Write::set,
                          dweight2, dbias2);
      queue.finish();
      CHECK((y.agree() && dx.agree()));
      CHECK((same_bits(mean, mean2) && same_bits(rstd, rstd2)));
      CHECK((same_bits(dweight, dweight2) && same_bits(dbias, dbias2)));
      dx = dy;
      rms_norm_forward(queue, x.low, weight, 1e-5f, y.low, rstd);
      rms_norm_forward(queue, x.wide, weight, 1e-5f, y.wide, rstd2);
      rms_norm_backward(queue, x.low, weight, rstd, dy.low, write, dx.low, Write::set, dweight);
      rms_norm_backward(queue, x.wide, weight, rstd, dy.wide, write, dx.wide, Write::set, dweight2);
      queue.finish();
      CHECK((y.agree() && dx.agree() && same_bits(dweight, dweight2)));
    }
  }
}

TEST_CASE("dropout with and without a residual in a low dtype is the rounded f32 one") {
  for (const Dtype dtype : low_dtypes) {
    for (const float p : {0.0f, 0.3f}) {
      Queue queue;
      const Dropout dropout{.p = p, .seed = 5};
      Both x = random_both({6, 35}, dtype, 1), residual = random_both({6, 35}, dtype, 2), y = x;
      dropout_forward(queue, dropout, 3, x.low, residual.low, y.low);
      dropout_forward(queue, dropout, 3, x.wide, residual.wide, y.wide);
      dropout_backward(queue, dropout, 3, x.low, x.low);
      dropout_backward(queue, dropout, 3, x.wide, x.wide);
      queue.finish();
      CHECK((y.agree() && x.agree()));
    }
  }
}

TEST_CASE("a fused op rounds its result once, where its parts would round one after the other") {
  Queue queue;
  // 1 + 2^-8 lies between two numbers of bf16, and goes to the even one, 1.
  const Tensor x = converted(tensor_of({1, 2}, {1, 0x1p-8f}), Dtype::bf16);
  const Tensor ones = converted(tensor_of({1, 2}, {1, 1}), Dtype::bf16);
  const Tensor bias = tensor_of({1}, {0x1p-8f}), y({1, 1}, Dtype::bf16);
  for (const ProductKernel kernel : product_kernels()) {
    const UseProductKernel use(kernel);
    linear_forward(queue, x, ones, View(), y);
    queue.finish();
    CHECK(to_float(y.view().as<Bf16>()[0]) == 1);
    linear_forward(queue, x, ones, bias, y);
    queue.finish();
    CHECK(to_float(y.view().as<Bf16>()[0]) == 1 + 0x1p-7f);  // a second rounding would give 1
  }
  // Kept elements are 4/3, which goes to 1 + 43/128.
  const Tensor one = converted(tensor_of({1, 1}, {1}), Dtype::bf16), sum({1, 1}, Dtype::bf16);
  const Tensor residual = converted(tensor_of({1, 1}, {-1 - 42.0f / 128}), Dtype::bf16);
  Dropout dropout{.p = 0.25f};
  int n_kept = 0;
  for (dropout.seed = 1; dropout.seed < 20; ++dropout.seed) {
    dropout_forward(queue, dropout, 1, one, residual, sum);
    queue.finish();
    const float result = to_float(sum.view().as<Bf16>()[0]);
    if (result < 0) continue;
    ++n_kept;
    CHECK(result == Approx(4.0 / 3 - 1 - 42.0 / 128).epsilon(0x1p-8));  // else 1/128
  }
  CHECK(n_kept > 0);
}

TEST_CASE("rotary positions and attention in a low dtype are the rounded f32 ones") {
  for (const Dtype dtype : low_dtypes) {
    for (const float p : {0.0f, 0.2f}) {
      Queue queue;
      const AttentionShape shape{2, 61, 4, 2, 12};  // two heads a key head, a block and a rest
      const Dropout dropout{.p = p, .seed = 5, .first_sample = 3};
      Both qkv = random_both({122, shape.qkv_width()}, dtype, 1), dqkv = qkv;
      Both out = random_both({122, 48}, dtype, 2), dout = random_both({122, 48}, dtype, 3);
      const Tensor log_sum({2, 4, 61}), log_sum2({2, 4, 61});
      rope_forward(queue, shape, 10000, qkv.low);
      rope_forward(queue, shape, 10000, qkv.wide);
      queue.finish();
      REQUIRE(qkv.agree());
      qkv = Both(qkv.low, dtype);
      attention_forward(queue, shape, qkv.low, dropout, out.low, log_sum);
      attention_forward(queue, shape, qkv.wide, dropout, out.wide, log_sum2);
      queue.finish();
      CHECK((out.agree() && same_bits(log_sum, log_sum2)));
      out = Both(out.low, dtype);
      attention_backward(queue, shape, qkv.low, out.low, log_sum, dout.low, dropout, dqkv.low);
      attention_backward(queue, shape, qkv.wide, out.wide, log_sum, dout.wide, dropout, dqkv.wide);
      queue.finish();
      CHECK(dqkv.agree());
    }
  }
}

TEST_CASE("attention by products of bf16 stays within a rounding of the probabilities") {
  if (!has_fast_bf16()) return;
  for (const std::int64_t seq_len : {1, 2, 61, 96, 255}) {
    for (const float p : {0.0f, 0.2f}) {
      INFO(seq_len << " tokens, dropout " << p);
      Queue queue;
      const AttentionShape shape{2, seq_len, 4, 2, seq_len == 61 ? 16 : 64};
      const std::int64_t n = shape.n_tokens(), out_width = shape.n_heads * shape.head_dim;
      const Dropout dropout{.p = p, .seed = 5, .first_sample = 3};
      Both qkv = random_both({n, shape.qkv_width()}, Dtype::bf16, 1), dqkv = qkv;
      Both out = random_both({n, out_width}, Dtype::bf16, 2), dout = out;
      const Tensor log_sum({2, 4, seq_len}), log_sum2({2, 4, seq_len});
      attention_forward(queue, shape, qkv.low, dropout, out.low, log_sum);
      attention_forward(queue, shape, qkv.wide, dropout, out.wide, log_sum2);
      queue.finish();
      check_close(log_sum, log_sum2, 1e-6);
      // A probability rounds, a sum of them does, and so does what is stored.
      CHECK(relative_distance(out.low, out.wide) < unit_roundoff(Dtype::bf16));
      out = Both(out.low, Dtype::bf16);
      attention_backward(queue, shape, qkv.low, out.low, log_sum, dout.low, dropout, dqkv.low);
      attention_backward(queue, shape, qkv.wide, out.wide, log_sum, dout.wide, dropout, dqkv.wide);
      queue.finish();
      CHECK(relative_distance(dqkv.low, dqkv.wide) < unit_roundoff(Dtype::bf16));
    }
  }
}

TEST_CASE("an embedding in a low dtype sums in f32 and its gradients are f32") {
  for (const Dtype dtype : low_dtypes) {
    Queue queue;
    Both table = random_both({9, 21}, dtype, 1), positions = random_both({4, 21}, dtype, 2);
    Both y = random_both({8, 21}, dtype, 3);
    const Tensor tokens = ids_of({3, 0, 8, 8, 1, 3, 3, 2});
    const Tensor dtable({9, 21}), dtable2({9, 21}), dpositions({4, 21}), dpositions2({4, 21});
    embedding_backward(queue, tokens, y.low, 4, Write::set, dtable, dpositions);
    embedding_backward(queue, tokens, y.wide, 4, Write::set, dtable2, dpositions2);
    embedding_forward(queue, tokens, table.low, positions.low, 4, y.low);
    embedding_forward(queue, tokens, table.wide, positions.wide, 4, y.wide);
    queue.finish();
    CHECK(y.agree());
    CHECK((same_bits(dtable, dtable2) && same_bits(dpositions, dpositions2)));
  }
}

TEST_CASE("cross-entropy takes f32 logits and rounds their gradient once") {
  for (const Dtype dtype : low_dtypes) {
    Queue queue;
    const Tensor logits = random_tensor({5, 77}, 1, 4), same = converted(logits, Dtype::f32);
    const Tensor labels = ids_of({3, 76, ignored_label, 0, 40}), losses({5}), losses2({5});
    Both dlogits = random_both({5, 77}, dtype, 2);
    cross_entropy_forward_backward(queue, labels, 512, same, same, losses2);
    cross_entropy_forward_backward(queue, labels, 512, logits, dlogits.low, losses);
    queue.finish();
    CHECK(same_bits(dlogits.low, converted(same, dtype)));
    CHECK(same_bits(losses, losses2));
  }
}

TEST_CASE("AdamW keeps f32 weights that small updates move, and rounds a copy of them") {
  const std::int64_t n = 37;
  const Tensor w({n}), m({n}), v({n}), g({n}), copy({n}, Dtype::bf16);
  Queue queue;
  fill(queue, 1, w);
  fill(queue, 1, g);
  for (std::int64_t t = 1; t <= 100; ++t) {
    // m and v of a constant gradient 1 are its mean and its square: each update is -lr.
    adamw(queue, {6e-4f, 0.9f, 0.95f, 0, 0, t, 1}, g, w, m, v, copy);
  }
  queue.finish();
  CHECK(w[n - 1] == Approx(0.94).epsilon(1e-5));  // bf16 would stay at 1: half of its place is 2e-3
  for (std::int64_t i = 0; i < n; ++i) {
    REQUIRE(to_float(copy.view().as<Bf16>()[i]) == 0.94140625f);
  }
}

TEST_CASE("AdamW's copy is the rounded weight in every dtype") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Tensor w = random_tensor({1030}, 1), g = random_tensor({1030}, 2), m({1030}), v({1030});
    const Tensor copy({1030}, dtype);
    Queue queue;
    adamw(queue, {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1}, g, w, m, v, copy);
    queue.finish();
    CHECK(same_bits(copy, converted(w, dtype)));
  }
}

TEST_CASE(
    "a linear layer in a low dtype multiplies the rounded matrices and rounds the result once") {
  for (const ProductKernel kernel : product_kernels()) {
    const UseProductKernel use(kernel);
    for (const Dtype dtype : low_dtypes) {
      for (const bool is_wide : {true, false}) {
        const std::int64_t n = 150, n_in = 133, n_out = 171;
        Queue queue;
        Both x = random_both({n, n_in}, dtype, 1), w = random_both({n_out, n_in}, dtype, 2);
        Both dy = random_both({n, n_out}, dtype, 3), dx = x, y = dy;
        const Tensor bias = random_tensor({n_out}, 4), wide_y({n, n_out});
        const Tensor dw({n_out, n_in}), db({n_out}), dw2({n_out, n_in}), db2({n_out});
        const MutView low_y = is_wide ? wide_y.view() : y.low.view();
        linear_forward(queue, x.low, w.low, bias, low_y);
        linear_forward(queue, x.wide, w.wide, bias, y.wide);
        linear_backward_input(queue, dy.low, w.low, Write::set, dx.low);
        linear_backward_input(queue, dy.wide, w.wide, Write::set, dx.wide);
        linear_backward_weight(queue, x.low, dy.low, Write::set, dw, db);
        linear_backward_weight(queue, x.wide, dy.wide, Write::set, dw2, db2);
        queue.finish();
        INFO("kernel " << static_cast<int>(kernel) << " in " << name_of(dtype));
        // Products of bf16 are exact in f32: two kernels differ in the order of their sums alone.
        CHECK(relative_distance(low_y, y.wide) < (is_wide ? 1e-6 : unit_roundoff(dtype)));
        CHECK(relative_distance(dx.low, dx.wide) < unit_roundoff(dtype));
        CHECK(relative_distance(dw, dw2) < 1e-6);
        CHECK(same_bits(db, db2));
        Both before = random_both({n, n_in}, dtype, 5), after = before;
        linear_backward_input(queue, dy.low, w.low, Write::add, after.low);
        linear_backward_weight(queue, x.low, dy.low, Write::add, dw, db);
        queue.finish();
        for (std::int64_t i = 0; i < after.wide.size(); ++i) after.wide[i] += dx.wide[i];
        CHECK(relative_distance(after.low, after.wide) < unit_roundoff(dtype));
        for (std::int64_t i = 0; i < dw2.size(); ++i) dw2[i] *= 2;
        CHECK(relative_distance(dw, dw2) < 1e-6);
      }
    }
  }
}

TEST_CASE("products of bf16 over many outputs are summed in f32 slab by slab") {
  const std::int64_t n = 20, n_in = 320, n_out = 27'000;  // more than 8 Mi weights: nine slabs
  const Both w = random_both({n_out, n_in}, Dtype::bf16, 1, 0.02f);
  const Both dy = random_both({n, n_out}, Dtype::bf16, 2);
  for (const ProductKernel kernel : product_kernels()) {
    const UseProductKernel use(kernel);
    for (const Write write : {Write::set, Write::add}) {
      Queue queue;
      Both dx = random_both({n, n_in}, Dtype::bf16, 3), lone = dx;
      linear_backward_input(queue, dy.low, w.low, write, dx.low);
      linear_backward_input(queue, dy.wide, w.wide, write, dx.wide);
      linear_backward_input(queue, part(View(dy.low), 3 * n_out, {1, n_out}), w.low, write,
                            part(lone.low.view(), 3 * n_in, {1, n_in}));
      queue.finish();
      CHECK(relative_distance(dx.low, dx.wide) < unit_roundoff(Dtype::bf16));
      if (kernel != ProductKernel::bf16) continue;
      CHECK(
          same_bits(part(View(dx.low), 3 * n_in, {n_in}), part(View(lone.low), 3 * n_in, {n_in})));
    }
  }
}

TEST_CASE("a linear layer in bf16 gives a row the same bits among few rows and many") {
  if (!has_fast_bf16()) return;  // copies in f32 are as f32 is
  const std::int64_t sizes[][2] = {{4096, 300}, {1024, 1024}, {384, 96}, {33, 2048}};
  for (const auto& [n_in, n_out] : sizes) {
    const std::int64_t n = 300, first = 64, n_few = 20;
    const Both x = random_both({n, n_in}, Dtype::bf16, 1),
               w = random_both({n_out, n_in}, Dtype::bf16, 2);
    const Tensor y({n, n_out}), few({n_few, n_out});
    Queue queue;
    linear_forward(queue, x.low, w.low, View(), y);
    linear_forward(queue, part(View(x.low), first * n_in, {n_few, n_in}), w.low, View(), few);
    queue.finish();
    INFO(n_in << " to " << n_out);
    CHECK(same_bits(y.data() + first * n_out, few.data(), few.size()));
  }
}

TEST_CASE("a linear layer in f16 overflows to infinity, not to a wrong number") {
  Queue queue;
  const Tensor x = converted(tensor_of({1, 2}, {300, 300}), Dtype::f16);
  const Tensor y({1, 1}, Dtype::f16);
  linear_forward(queue, x, x, View(), y);
  queue.finish();
  CHECK(std::isinf(to_float(y.view().as<F16>()[0])));
}

TEST_CASE("one call's matrices have one dtype") {
  Queue queue;
  const Tensor x({2, 3}, Dtype::bf16), w({4, 3}, Dtype::f16), y({2, 4}), ids({2, 3}, Dtype::i32);
  CHECK_THROWS_WITH(linear_forward(queue, x, w, View(), y),
                    Catch::Contains("weight is a matrix of bf16"));
  CHECK_THROWS_WITH(activation_forward(queue, Activation::relu, x, part(y.view(), 0, {2, 3})),
                    Catch::Contains("y is bf16"));
  CHECK_THROWS_WITH(activation_forward(queue, Activation::relu, ids, ids),
                    Catch::Contains("x is f32, bf16 or f16"));
  CHECK(queue.empty());
}
