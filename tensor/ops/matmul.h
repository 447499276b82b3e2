#pragma once
#include <cstdint>

namespace llm {

/// c (m, n) = alpha * op(a) op(b) + beta * c, all f32 and row-major with leading dimensions in
/// elements; op transposes where asked: op(a) is (m, k), op(b) is (k, n). beta 0 never reads c.
struct Matmul {
  bool transpose_a;
  bool transpose_b;
  std::int64_t m, n, k;
  float alpha;
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float beta;
  float* c;
  std::int64_t ldc;
};

/// By oneDNN, on the calling thread: the one place where its fp32 products are called.
void matmul(const Matmul& product);

/// The definition: plain loops, k in order.
void matmul_plain(const Matmul& product);

}  // namespace llm
