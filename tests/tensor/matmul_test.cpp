#include "tensor/ops/matmul.h"

#include "src/base/error.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

struct Size {
  std::int64_t m, n, k;
};

Matmul product(bool transpose_a, bool transpose_b, Size s, const Tensor& a, const Tensor& b,
               float beta, const Tensor& c) {
  return {.transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .alpha = 0.5f,
          .a = a.data(),
          .lda = transpose_a ? s.m : s.k,
          .b = b.data(),
          .ldb = transpose_b ? s.k : s.n,
          .beta = beta,
          .c = c.data(),
          .ldc = s.n};
}

}  // namespace

TEST_CASE("a product by hand") {
  const Tensor a = tensor_of({2, 2}, {1, 2, 3, 4});
  const Tensor b = tensor_of({2, 2}, {5, 6, 7, 8});
  Tensor c({2, 2});
  matmul(product(false, false, {2, 2, 2}, a, b, 0, c));
  check_close(c, Doubles{9.5, 11, 21.5, 25}, 0);
  matmul(product(false, true, {2, 2, 2}, a, b, 1, c));
  check_close(c, Doubles{9.5 + 8.5, 11 + 11.5, 21.5 + 19.5, 25 + 26.5}, 0);
}

TEST_CASE("the library's product agrees with the definition for every transposition") {
  const std::vector<Size> sizes = {
      {1, 1, 1}, {3, 17, 65}, {65, 3, 17}, {48, 64, 100}, {7, 130, 33}};
  for (const Size& s : sizes) {
    for (int kind = 0; kind < 8; ++kind) {
      const Tensor a = random_tensor({s.m * s.k}, 1), b = random_tensor({s.k * s.n}, 2);
      const Tensor fast = random_tensor({s.m, s.n}, 3), plain = random_tensor({s.m, s.n}, 3);
      const float beta = kind & 4 ? 1.0f : 0.0f;
      matmul(product(kind & 1, kind & 2, s, a, b, beta, fast));
      matmul_plain(product(kind & 1, kind & 2, s, a, b, beta, plain));
      check_close(fast, plain, 1e-6);  // sums of at most 100 products below 1
    }
  }
}

TEST_CASE("a product without terms is zero, and with beta 0 it never reads its output") {
  const Tensor a({0}), b({0});
  const Tensor c = tensor_of({1, 2}, {NAN, 1});
  matmul(product(false, false, {1, 2, 0}, a, b, 0, c));
  check_close(c, Doubles{0, 0}, 0);
  const Tensor x = tensor_of({1}, {2}), y = tensor_of({1, 2}, {1, 1});
  const Tensor z = tensor_of({1, 2}, {NAN, INFINITY});
  matmul(product(false, false, {1, 2, 1}, x, y, 0, z));
  check_close(z, Doubles{1, 1}, 0);
}

TEST_CASE("a row's bits do not depend on how many rows, 16 to 79, are multiplied with it") {
  const Size sizes[] = {
      {79, 384, 96}, {79, 96, 384}, {79, 33, 1536}, {79, 50, 700}, {79, 1024, 800}};
  for (const Size& s : sizes) {
    for (const bool transpose_b : {false, true}) {
      const Tensor a = random_tensor({s.m * s.k}, 1), b = random_tensor({s.k * s.n}, 2);
      const Tensor whole({s.m, s.n}), few({s.m, s.n});
      matmul(product(false, transpose_b, s, a, b, 0, whole));
      for (const std::int64_t n_rows : {16, 17, 19, 21, 31, 48, 64, 65, 73}) {
        Matmul tile = product(false, transpose_b, s, a, b, 0, few);
        tile.m = n_rows;
        matmul(tile);
        INFO(n_rows << " rows of " << s.n << " x " << s.k);
        CHECK(same_bits(whole.data(), few.data(), n_rows * s.n));
      }
    }
  }
}

TEST_CASE("a column's bits do not depend on how many columns are multiplied with it") {
  const Size s{64, 208, 384};
  const Tensor a = random_tensor({s.m * s.k}, 1), b = random_tensor({s.n * s.k}, 2);
  const Tensor whole({s.m, s.n}), cut({s.m, s.n});
  matmul(product(false, false, s, a, b, 0, whole));
  for (std::int64_t begin = 0; begin < s.n; begin += 64) {
    Matmul tile = product(false, false, s, a, b, 0, cut);
    tile.n = std::min<std::int64_t>(64, s.n - begin);
    tile.b += begin;
    tile.c += begin;
    matmul(tile);
  }
  CHECK(same_bits(whole, cut));
}

namespace {

/// The same product in bf16 and by the definition, on the same numbers.
MatmulBf16 product_bf16(const Matmul& p, const Tensor& a, const Tensor& b, const float* bias,
                        MutElements c) {
  return {p.transpose_a, p.transpose_b,       p.m,   p.n,  p.k,         a.view().as<Bf16>(),
          p.lda,         b.view().as<Bf16>(), p.ldb, bias, p.beta != 0, c,
          p.ldc};
}

}  // namespace

TEST_CASE("the library's product of bf16 agrees with the definition for every transposition") {
  if (!has_fast_bf16()) return;
  const std::vector<Size> sizes = {
      {1, 1, 1}, {3, 17, 65}, {65, 3, 17}, {48, 64, 100}, {7, 130, 33}};
  for (const Size& s : sizes) {
    for (int kind = 0; kind < 8; ++kind) {
      const Tensor low_a = converted(random_tensor({s.m * s.k}, 1), Dtype::bf16);
      const Tensor low_b = converted(random_tensor({s.k * s.n}, 2), Dtype::bf16);
      const Tensor a = converted(low_a, Dtype::f32), b = converted(low_b, Dtype::f32);
      const bool add = kind & 4;
      const Tensor bias = random_tensor({s.n}, 4);
      const Tensor fast = random_tensor({s.m, s.n}, 3), plain = random_tensor({s.m, s.n}, 3);
      Matmul p = product(kind & 1, kind & 2, s, a, b, add ? 1.0f : 0.0f, plain);
      p.alpha = 1;
      matmul_plain(p);
      for (std::int64_t i = 0; i < plain.size() && !add; ++i) plain[i] += bias[i % s.n];
      matmul(product_bf16(p, low_a, low_b, add ? nullptr : bias.data(), fast.data()));
      check_close(fast, plain, 1e-6);  // sums of at most 100 products below 1
      const Tensor low({s.m, s.n}, Dtype::bf16);
      if (add) continue;
      matmul(product_bf16(p, low_a, low_b, bias.data(), low.view()));
      CHECK(same_bits(low, converted(fast, Dtype::bf16)));
    }
  }
}

TEST_CASE("a row's bits do not depend on how many rows of bf16 are multiplied with it") {
  if (!has_fast_bf16()) return;
  const Size sizes[] = {
      {700, 96, 384}, {700, 384, 96}, {300, 33, 1536}, {300, 1024, 800}, {300, 768, 3072}};
  for (const Size& s : sizes) {
    for (const bool transpose_b : {false, true}) {
      const Tensor a = converted(random_tensor({s.m * s.k}, 1), Dtype::bf16);
      const Tensor b = converted(random_tensor({s.k * s.n}, 2), Dtype::bf16);
      const Tensor whole({s.m, s.n}), few({s.m, s.n}), unused({s.m * s.k + s.k * s.n});
      Matmul p = product(false, transpose_b, s, unused, unused, 0, whole);
      matmul(product_bf16(p, a, b, nullptr, whole.data()));
      for (const std::int64_t n_rows : {1, 2, 15, 16, 17, 64, 100, 128, 200, 256, 299}) {
        p.m = n_rows;
        matmul(product_bf16(p, a, b, nullptr, few.data()));
        INFO(n_rows << " rows of " << s.n << " x " << s.k);
        CHECK(same_bits(whole.data(), few.data(), n_rows * s.n));
      }
    }
  }
}

TEST_CASE("products of bf16 are refused where the CPU has none") {
  if (has_fast_bf16()) return;
  CHECK(product_kernel() == ProductKernel::f32_copies);
  CHECK_THROWS_AS(set_product_kernel(ProductKernel::bf16), ConfigError);
}
