#include "tensor/cuda/products.h"

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"

// The library's matrices are column-major, so each of ours is its transpose there, and a product
// c = a b is c^T = b^T a^T: our b is the library's A, our a its B.
namespace llm::cuda {
namespace {

/// What an algorithm depends on.
struct Problem {
  std::int64_t rows;     ///< of c
  std::int64_t columns;  ///< of c
  std::int64_t depth;
  bool turns_a;
  bool turns_b;
  bool has_bias;
  Dtype from;
  Dtype to;

  auto key() const {
    return std::tuple(rows, columns, depth, turns_a, turns_b, has_bias, from, to);
  }
  bool operator<(const Problem& other) const { return key() < other.key(); }
};

std::string to_text(const Problem& p) {
  const auto factor = [&](std::int64_t n, std::int64_t m, bool turns) {
    return to_string(turns ? Shape{m, n} : Shape{n, m}) + (turns ? "^T" : "");
  };
  return std::string(name_of(p.to)) + " " + to_string(Shape{p.rows, p.columns}) + " = " +
         name_of(p.from) + " " + factor(p.rows, p.depth, p.turns_a) + " " +
         factor(p.depth, p.columns, p.turns_b) + (p.has_bias ? " + bias" : "");
}

void check(cublasStatus_t status, const char* call, const std::string& of = "") {
  CHECK_CONTRACT(status == CUBLAS_STATUS_SUCCESS, std::string(call) + (of.empty() ? "" : " of ") +
                                                      of + ": " + cublasLtGetStatusName(status));
}

cudaDataType_t type_of(Dtype dtype) {
  CHECK_CONTRACT(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16,
                 "a product is of f32, bf16 or f16");
  return dtype == Dtype::f32 ? CUDA_R_32F : dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// What every row of a matrix is aligned to when the first one is.
std::uint32_t row_alignment(const View& matrix) {
  constexpr std::uint32_t widest_load = 16;
  const auto bytes = static_cast<std::uint32_t>(matrix.shape()[1]) *
                     static_cast<std::uint32_t>(size_of(matrix.dtype()));
  const std::uint32_t bits = bytes | widest_load;
  return bits & (~bits + 1);
}

void check_alignment(const View& matrix) {
  const std::uint32_t alignment = row_alignment(matrix);
  CHECK_CONTRACT(reinterpret_cast<std::uintptr_t>(matrix.data()) % alignment == 0,
                 "a matrix " + to_string(matrix.shape()) + " begins at a multiple of " +
                     std::to_string(alignment) + " bytes");
}

class Layout {
 public:
  explicit Layout(const View& matrix) {
    const std::int64_t width = matrix.shape()[1];
    check(cublasLtMatrixLayoutCreate(&handle_, type_of(matrix.dtype()),
                                     static_cast<std::uint64_t>(width),
                                     static_cast<std::uint64_t>(matrix.shape()[0]), width),
          "cublasLtMatrixLayoutCreate", to_string(matrix.shape()));
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(handle_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  operator cublasLtMatrixLayout_t() const { return handle_; }

 private:
  cublasLtMatrixLayout_t handle_ = nullptr;
};

class Description {
 public:
  /// `bias` in c's dtype.
  Description(const Problem& problem, const void* bias) {
    check(cublasLtMatmulDescCreate(&handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.turns_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.turns_a));
    if (!problem.has_bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(problem.to)));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  ~Description() { cublasLtMatmulDescDestroy(handle_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  operator cublasLtMatmulDesc_t() const { return handle_; }

 private:
  static std::int32_t operation(bool turns) { return turns ? CUBLAS_OP_T : CUBLAS_OP_N; }
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check(cublasLtMatmulDescSetAttribute(handle_, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  cublasLtMatmulDesc_t handle_ = nullptr;
};

class Preference {
 public:
  Preference(std::size_t workspace_bytes, const View& a, const View& b, const View& c) {
    check(cublasLtMatmulPreferenceCreate(&handle_), "cublasLtMatmulPreferenceCreate");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    // Partial sums in f32, added in a step of their own; or none.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, row_alignment(b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, row_alignment(a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, row_alignment(c));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, row_alignment(c));
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  operator cublasLtMatmulPreference_t() const { return handle_; }

 private:
  template <typename Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t handle_ = nullptr;
};

/// A problem's descriptors and its algorithm.
struct Solution {
  Solution(cublasLtHandle_t library, std::size_t workspace_bytes, const Problem& problem,
           const void* bias, const View& a_view, const View& b_view, const View& c_view)
      : description(problem, bias), a(a_view), b(b_view), c(c_view) {
    const Preference preference(workspace_bytes, a_view, b_view, c_view);
    cublasLtMatmulHeuristicResult_t result{};
    int n_results = 0;
    check(cublasLtMatmulAlgoGetHeuristic(library, description, b, a, c, c, preference, 1, &result,
                                         &n_results),
          "cublasLtMatmulAlgoGetHeuristic", to_text(problem));
    CHECK_CONTRACT(n_results == 1, "cuBLASLt has an algorithm for " + to_text(problem));
    check(result.state, "cublasLtMatmulAlgoGetHeuristic", to_text(problem));
    algorithm = result.algo;
  }
  Description description;
  Layout a;
  Layout b;
  Layout c;
  cublasLtMatmulAlgo_t algorithm;
};

/// All objects that live, by stream.
struct Registry {
  std::mutex mutex;
  std::map<cudaStream_t, Products*> of;
};
Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

struct Products::State {
  State(cudaStream_t stream_, std::size_t n_bytes) : stream(stream_), workspace_bytes(n_bytes) {
    check(cublasLtCreate(&handle), "cublasLtCreate");
    check(cudaMallocAsync(&workspace, workspace_bytes + bias_bytes, stream), "cudaMallocAsync");
  }
  ~State() {
    if (workspace != nullptr) cudaFreeAsync(workspace, stream);
    cublasLtDestroy(handle);
  }

  cudaStream_t stream;
  std::size_t workspace_bytes;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Problem, Solution> solutions;
};

Products::Products(cudaStream_t stream, std::size_t workspace_bytes)
    : state_(std::make_unique<State>(stream, workspace_bytes)) {
  const std::lock_guard lock(registry().mutex);
  CHECK_CONTRACT(registry().of.emplace(stream, this).second, "a stream has one Products");
}

Products::~Products() {
  const std::lock_guard lock(registry().mutex);
  registry().of.erase(state_->stream);
}

Products* Products::of(cudaStream_t stream) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().of.find(stream);
  return found == registry().of.end() ? nullptr : found->second;
}

void Products::multiply(const Factor& a, const Factor& b, View bias, Write write, MutView c) {
  State& s = *state_;
  const Shape& shape = a.matrix.shape();
  const Problem problem{.rows = c.shape()[0],
                        .columns = c.shape()[1],
                        .depth = a.is_transposed ? shape[0] : shape[1],
                        .turns_a = a.is_transposed,
                        .turns_b = b.is_transposed,
                        .has_bias = !bias.empty(),
                        .from = a.matrix.dtype(),
                        .to = c.dtype()};
  CHECK_CONTRACT(bias.empty() || write == Write::set, "a bias is added once");
  for (const View& matrix : {a.matrix, b.matrix, View(c)}) check_alignment(matrix);
  void* const rounded = static_cast<std::byte*>(s.workspace) + s.workspace_bytes;
  if (problem.has_bias) {
    const MutView copy{rounded, c.dtype(), bias.shape(), llm::Device::cuda};
    CHECK_CONTRACT(static_cast<std::size_t>(copy.n_bytes()) <= bias_bytes,
                   "a bias has at most " + std::to_string(bias_bytes) + " bytes");
    convert(s.stream, bias, copy);
  }
  auto found = s.solutions.find(problem);
  if (found == s.solutions.end()) {
    found = s.solutions
                .try_emplace(problem, s.handle, s.workspace_bytes, problem, rounded, a.matrix,
                             b.matrix, View(c))
                .first;
  }
  const Solution& solution = found->second;
  const float alpha = 1;
  const float beta = write == Write::add ? 1 : 0;
  check(cublasLtMatmul(s.handle, solution.description, &alpha, b.matrix.data(), solution.b,
                       a.matrix.data(), solution.a, &beta, c.data(), solution.c, c.data(),
                       solution.c, &solution.algorithm, s.workspace, s.workspace_bytes, s.stream),
        "cublasLtMatmul", to_text(problem));
}

}  // namespace llm::cuda
