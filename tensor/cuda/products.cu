#include "tensor/cuda/products.h"

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
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
  bool has_gelu;  ///< of the sum, which is kept too
  Dtype from;
  Dtype to;

  auto key() const {
    return std::tuple(rows, columns, depth, turns_a, turns_b, has_bias, has_gelu, from, to);
  }
  bool operator<(const Problem& other) const { return key() < other.key(); }
};

std::string to_text(const Problem& p) {
  const auto factor = [&](std::int64_t n, std::int64_t m, bool turns) {
    return to_string(turns ? Shape{m, n} : Shape{n, m}) + (turns ? "^T" : "");
  };
  return std::string(name_of(p.to)) + " " + to_string(Shape{p.rows, p.columns}) + " = " +
         name_of(p.from) + " " + factor(p.rows, p.depth, p.turns_a) + " " +
         factor(p.depth, p.columns, p.turns_b) + (p.has_bias ? " + bias" : "") +
         (p.has_gelu ? ", and its gelu" : "");
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
  explicit Description(const Problem& problem) : problem_(problem) {
    check(cublasLtMatmulDescCreate(&handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.turns_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.turns_a));
    const std::uint32_t sum = problem.has_bias ? CUBLASLT_EPILOGUE_BIAS : 0;
    const std::uint32_t gelu = problem.has_gelu ? CUBLASLT_EPILOGUE_GELU_AUX : 0;
    if ((sum | gelu) == 0) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, sum | gelu);
    if (problem.has_bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(problem.to)));
    }
    if (problem.has_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.columns);
  }
  ~Description() { cublasLtMatmulDescDestroy(handle_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  operator cublasLtMatmulDesc_t() const { return handle_; }

  /// The bias in c's dtype, and where the sum before its gelu goes. Algorithms are chosen for how
  /// these are aligned.
  void point_at(const void* bias, void* sum) {
    if (problem_.has_bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (problem_.has_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, sum);
  }

 private:
  static std::int32_t operation(bool turns) { return turns ? CUBLAS_OP_T : CUBLAS_OP_N; }
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check(cublasLtMatmulDescSetAttribute(handle_, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  Problem problem_;
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

/// What a bias and a sum before its gelu are aligned to at least.
constexpr std::size_t vector_alignment = 16;

bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % vector_alignment == 0;
}

/// A problem's descriptors and its algorithm; none where the library has none with this gelu.
struct Solution {
  /// `place` is aligned like the bias and the sum at least are, and no more.
  Solution(cublasLtHandle_t library, std::size_t workspace_bytes, const Problem& problem,
           void* place, const View& a_view, const View& b_view, const View& c_view)
      : description(problem), a(a_view), b(b_view), c(c_view) {
    description.point_at(place, place);
    const Preference preference(workspace_bytes, a_view, b_view, c_view);
    cublasLtMatmulHeuristicResult_t result{};
    int n_results = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library, description, b, a, c, c, preference, 1, &result, &n_results);
    const bool has_none = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                          (status == CUBLAS_STATUS_SUCCESS && n_results == 0);
    if (problem.has_gelu && has_none) return;
    check(status, "cublasLtMatmulAlgoGetHeuristic", to_text(problem));
    CHECK_CONTRACT(n_results == 1, "cuBLASLt has an algorithm for " + to_text(problem));
    check(result.state, "cublasLtMatmulAlgoGetHeuristic", to_text(problem));
    algorithm = result.algo;
  }
  Description description;
  Layout a;
  Layout b;
  Layout c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
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
    workspace = allocate_in(stream, workspace_bytes + bias_bytes);
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

struct Products::Call {
  const Factor& a;
  const Factor& b;
  View bias;
  Write write;
  MutView sum;  ///< before its gelu; empty: c is the sum
  MutView c;
};

void Products::multiply(const Factor& a, const Factor& b, View bias, Write write, MutView c) {
  CHECK_CONTRACT(bias.empty() || write == Write::set, "a bias is added once");
  run({a, b, bias, write, MutView(), c});
}

bool Products::multiply_gelu_tanh(const Factor& a, const Factor& b, View bias, MutView up,
                                  MutView c) {
  CHECK_CONTRACT(a.matrix.dtype() == Dtype::f32 && c.dtype() == Dtype::f32,
                 "a gelu in a product is of f32");
  constexpr std::int64_t group = 8;  // of the rows of the sum, says the library
  if (c.shape()[1] % group != 0) return false;
  return run({a, b, bias, Write::set, up, c});
}

bool Products::run(const Call& call) {
  State& s = *state_;
  const auto& [a, b, bias, write, sum, c] = call;
  const Shape& shape = a.matrix.shape();
  const Problem problem{.rows = c.shape()[0],
                        .columns = c.shape()[1],
                        .depth = a.is_transposed ? shape[0] : shape[1],
                        .turns_a = a.is_transposed,
                        .turns_b = b.is_transposed,
                        .has_bias = !bias.empty(),
                        .has_gelu = !sum.empty(),
                        .from = a.matrix.dtype(),
                        .to = c.dtype()};
  for (const View& matrix : {a.matrix, b.matrix, View(c)}) check_alignment(matrix);
  if (problem.has_gelu) check_alignment(sum);
  std::byte* const room = static_cast<std::byte*>(s.workspace) + s.workspace_bytes;
  auto found = s.solutions.find(problem);
  if (found == s.solutions.end()) {
    found = s.solutions
                .try_emplace(problem, s.handle, s.workspace_bytes, problem, room + vector_alignment,
                             a.matrix, b.matrix, View(c))
                .first;
  }
  Solution& solution = found->second;
  if (!solution.algorithm) return false;
  const void* bias_in_place = bias.data();
  if (problem.has_bias && !(c.dtype() == bias.dtype() && is_aligned(bias.data()))) {
    const MutView copy{room, c.dtype(), bias.shape(), llm::Device::cuda};
    CHECK_CONTRACT(static_cast<std::size_t>(copy.n_bytes()) <= bias_bytes,
                   "a bias has at most " + std::to_string(bias_bytes) + " bytes");
    convert(s.stream, bias, copy);
    bias_in_place = room;
  }
  solution.description.point_at(bias_in_place, sum.data());
  const float alpha = 1;
  const float beta = write == Write::add ? 1 : 0;
  check(cublasLtMatmul(s.handle, solution.description, &alpha, b.matrix.data(), solution.b,
                       a.matrix.data(), solution.a, &beta, c.data(), solution.c, c.data(),
                       solution.c, &*solution.algorithm, s.workspace, s.workspace_bytes, s.stream),
        "cublasLtMatmul", to_text(problem));
  return true;
}

}  // namespace llm::cuda
