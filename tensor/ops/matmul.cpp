#include "tensor/ops/matmul.h"

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <atomic>
#include <string>
#include <unordered_map>

#include "src/base/check.h"
#include "src/base/error.h"
#include "tensor/ops/scratch.h"

// From libgomp, which Debian's oneDNN runs on. Declared here so that nothing needs -fopenmp.
extern "C" void omp_set_num_threads(int n_threads);

namespace llm {
namespace {

/// Rows of one call where a row's bits depend on their number.
constexpr std::int64_t block_rows = 64;

/// A rank's compute is one thread's work: a pool would fight the other ranks for their cores, and
/// its way of cutting a product would depend on the machine.
void use_one_thread() {
  static thread_local const bool done = (omp_set_num_threads(1), true);
  static_cast<void>(done);
}

void scale_only(const Matmul& p) {
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      float& c = p.c[i * p.ldc + j];
      c = p.beta == 0 ? 0 : p.beta * c;
    }
  }
}

std::atomic<ProductKernel>& chosen_kernel() {
  static std::atomic<ProductKernel> kernel(has_fast_bf16() ? ProductKernel::bf16
                                                           : ProductKernel::f32_copies);
  return kernel;
}

/// The library keeps compiled products of the latest shapes itself: to ask again costs 2 us.
void execute(const MatmulBf16& p) {
  using dnnl::memory;
  static thread_local const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  static thread_local dnnl::stream stream(engine);
  const auto bf16 = memory::data_type::bf16;
  const auto f32 = memory::data_type::f32;
  const auto matrix = [](std::int64_t rows, std::int64_t columns, memory::data_type type,
                         bool transposed, std::int64_t stride) {
    return memory::desc({rows, columns}, type,
                        transposed ? memory::dims{1, stride} : memory::dims{stride, 1});
  };
  const memory::desc a = matrix(p.m, p.k, bf16, p.transpose_a, p.lda);
  const memory::desc b = matrix(p.k, p.n, bf16, p.transpose_b, p.ldb);
  const memory::desc c = matrix(p.m, p.n, p.c.dtype == Dtype::f32 ? f32 : bf16, false, p.ldc);
  const memory::desc bias({1, p.n}, f32, memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  if (p.add) {
    dnnl::post_ops sum;
    sum.append_sum(1);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc product =
      p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const auto in = [](const memory::desc& desc, const void* data) {
    return memory(desc, engine, const_cast<void*>(data));  // the library only reads it
  };
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, in(a, p.a)},
                                            {DNNL_ARG_WEIGHTS, in(b, p.b)},
                                            {DNNL_ARG_DST, memory(c, engine, p.c.data)}};
  if (p.bias) arguments.emplace(DNNL_ARG_BIAS, in(bias, p.bias));
  dnnl::matmul({product, attributes, engine}).execute(stream, arguments);
}

}  // namespace

bool has_fast_bf16() {
  // The library's word, since DNNL_MAX_CPU_ISA may hold it below what the CPU has.
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const unsigned needed = dnnl_cpu_isa_avx512_core_bf16;
  return (isa & needed) == needed;
}

void set_product_kernel(ProductKernel kernel) {
  if (kernel == ProductKernel::bf16 && !has_fast_bf16()) {
    throw ConfigError(
        "products in bf16 need a CPU with AVX512_BF16, which this one lacks; "
        "let all ranks use f32 copies");
  }
  chosen_kernel() = kernel;
}

ProductKernel product_kernel() {
  return chosen_kernel();
}

namespace {

void execute(const Matmul& p) {
  const dnnl_status_t status =
      dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, p.alpha, p.a,
                 p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
  if (status != dnnl_success) {
    throw Error(ExitCode::internal, "dnnl_sgemm returned " + std::to_string(status));
  }
}

/// Fewer rows than a block: together with rows of zeros they make one.
void execute_padded(Matmul p) {
  static thread_local Scratch<float> scratch;
  float* a = at_least(scratch, block_rows * (p.k + p.n));
  float* c = a + block_rows * p.k;
  std::fill_n(a, block_rows * (p.k + p.n), 0.0f);
  for (std::int64_t i = 0; i < p.m; ++i) {
    std::copy_n(p.a + i * p.lda, p.k, a + i * p.k);
    if (p.beta != 0) std::copy_n(p.c + i * p.ldc, p.n, c + i * p.n);
  }
  Matmul whole = p;
  whole.m = block_rows;
  whole.a = a;
  whole.lda = p.k;
  whole.c = c;
  whole.ldc = p.n;
  execute(whole);
  for (std::int64_t i = 0; i < p.m; ++i) std::copy_n(c + i * p.n, p.n, p.c + i * p.ldc);
}

/// The library's products for AVX-512 give a row the same bits in every tile of an op. Those for
/// AVX2 go over six rows at a time and sum what is left, 1 to 3 rows, in another order.
bool has_rows_of_one_kind() {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

}  // namespace

std::int64_t product_scratch_elements(std::int64_t n, std::int64_t k) {
  return has_rows_of_one_kind() ? 0 : block_rows * (k + n);
}

void matmul(const Matmul& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return scale_only(p);
  use_one_thread();
  if (p.transpose_a || has_rows_of_one_kind()) return execute(p);
  for (std::int64_t begin = 0; begin < p.m; begin += block_rows) {
    Matmul block = p;
    block.m = std::min(block_rows, p.m - begin);
    block.a += begin * p.lda;
    block.c += begin * p.ldc;
    block.m == block_rows ? execute(block) : execute_padded(block);
  }
}

void matmul(const MatmulBf16& p) {
  if (p.m == 0 || p.n == 0) return;
  CHECK_CONTRACT(p.k > 0 && !(p.add && p.bias), "a product of bf16 has terms, and adds or biases");
  use_one_thread();
  try {
    execute(p);
  } catch (const dnnl::error& error) {
    throw Error(ExitCode::internal, std::string("oneDNN's product of bf16: ") + error.what());
  }
}

void matmul_plain(const Matmul& p) {
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k) {
        const float a = p.transpose_a ? p.a[k * p.lda + i] : p.a[i * p.lda + k];
        const float b = p.transpose_b ? p.b[j * p.ldb + k] : p.b[k * p.ldb + j];
        sum += a * b;
      }
      float& c = p.c[i * p.ldc + j];
      c = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * c);
    }
  }
}

}  // namespace llm
