#pragma once
#include <cstdint>

#include "tensor/ops/elements.h"

namespace llm {

/// What multiplies matrices of bf16: instructions of the CPU that take bf16, or copies in f32. The
/// sums differ in their bits, so all ranks of a job use the same. f16 is always copied.
enum class ProductKernel : std::uint8_t { f32_copies, bf16 };

/// Whether this CPU multiplies bf16 faster than f32 (AVX512_BF16 or more).
bool has_fast_bf16();

/// The process's kernel: bf16 where has_fast_bf16() unless set. Set it before ops are put in a
/// queue; `bf16` on a CPU without the instructions is a ConfigError.
void set_product_kernel(ProductKernel kernel);
ProductKernel product_kernel();

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

/// By oneDNN, on the calling thread: the one place where its fp32 products are called. Without
/// transpose_a a row's bits do not depend on m where that is 16 to 79; on CPUs without AVX-512
/// never.
void matmul(const Matmul& product);
/// f32 elements of scratch that a thread keeps after such a product of n columns and k terms.
std::int64_t product_scratch_elements(std::int64_t n, std::int64_t k);

/// c (m, n) = op(a) op(b) + bias, or c += op(a) op(b), with op, shapes and strides as in Matmul.
/// Sums are f32; what is stored in c is rounded once. k > 0.
struct MatmulBf16 {
  bool transpose_a;
  bool transpose_b;
  std::int64_t m, n, k;
  const Bf16* a;
  std::int64_t lda;
  const Bf16* b;
  std::int64_t ldb;
  const float* bias;  ///< n of them, or null
  bool add;           ///< then without a bias
  MutElements c;      ///< f32 or bf16
  std::int64_t ldc;
};

/// By oneDNN, on the calling thread; where has_fast_bf16(). Without transpose_a a row's bits do not
/// depend on m (tests/tensor/matmul_test.cpp).
void matmul(const MatmulBf16& product);

/// The definition: plain loops, k in order.
void matmul_plain(const Matmul& product);

}  // namespace llm
