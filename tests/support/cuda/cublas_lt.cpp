#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "tensor/ops/rounding.h"
#include "tests/support/cuda/error.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transposes_a = CUBLAS_OP_N;
  std::int32_t transposes_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;  ///< -1: d's
  void* aux = nullptr;
  std::int64_t aux_leading = 0;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignments[4] = {256, 256, 256, 256};
};

namespace llm::emulator {
namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;

/// Of d = a b, after transposition.
struct Extents {
  std::uint64_t m, n, k;
  bool operator==(const Extents&) const = default;
};

/// What an algorithm's opaque words hold.
struct Algorithm {
  Extents extents;
  std::uint32_t n_splits;  ///< of the sum over k
  std::uint32_t scheme;    ///< how their partial sums come together
  std::uint16_t alignments[4];
  std::uint16_t bias_alignment;
  std::uint16_t aux_alignment;
  std::uint64_t workspace_bytes;
  std::uint32_t types;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

std::size_t size_of_type(cudaDataType_t type) {
  return type == CUDA_R_32F ? sizeof(float) : sizeof(std::uint16_t);
}

float load(const void* x, std::uint64_t index, cudaDataType_t type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(x)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(x)[index];
  return type == CUDA_R_16F ? to_float(F16{bits}) : to_float(Bf16{bits});
}

float rounded(float x, cudaDataType_t type) {
  if (type == CUDA_R_32F) return x;
  return type == CUDA_R_16F ? to_float(round_to<F16>(x)) : to_float(round_to<Bf16>(x));
}

void store(void* x, std::uint64_t index, cudaDataType_t type, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(x)[index] = value;
  } else {
    static_cast<std::uint16_t*>(x)[index] =
        type == CUDA_R_16F ? round_to<F16>(value).bits : round_to<Bf16>(value).bits;
  }
}

std::uint32_t types_of(const cublasLtMatmulDescOpaque_t& desc, const Layout& a, const Layout& d) {
  return static_cast<std::uint32_t>(a.type) | static_cast<std::uint32_t>(d.type) << 8 |
         desc.epilogue << 16 | static_cast<std::uint32_t>(desc.transposes_a) << 24 |
         static_cast<std::uint32_t>(desc.transposes_b) << 25;
}

bool is_layout(const Layout* x) {
  return x != nullptr && x->rows > 0 && x->columns > 0 &&
         x->leading >= static_cast<std::int64_t>(x->rows);
}

bool adds_bias(const cublasLtMatmulDescOpaque_t& desc) {
  return desc.epilogue == CUBLASLT_EPILOGUE_BIAS ||
         desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool keeps_sum(const cublasLtMatmulDescOpaque_t& desc) {
  return desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
         desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/// A bias is of d's type; what a GELU leaves lies in rows of whole groups of 8.
cublasStatus_t check_epilogue(const cublasLtMatmulDescOpaque_t& desc, const Layout& d) {
  const bool is_known =
      desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT || adds_bias(desc) || keeps_sum(desc);
  if (!is_known || (keeps_sum(desc) && !has_gelu_epilogues())) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (adds_bias(desc)) {
    const std::int32_t type = desc.bias_type == -1 ? d.type : desc.bias_type;
    if (type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (desc.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!keeps_sum(desc)) return CUBLAS_STATUS_SUCCESS;
  const bool has_room = desc.aux != nullptr && desc.aux_leading % 8 == 0 &&
                        desc.aux_leading >= static_cast<std::int64_t>(d.rows);
  return has_room ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/// What the library's table of supported types has, and whether the extents fit.
cublasStatus_t check(const cublasLtMatmulDescOpaque_t* desc, const Layout* a, const Layout* b,
                     const Layout* c, const Layout* d, Extents& extents) {
  if (desc == nullptr || !is_layout(a) || !is_layout(b) || !is_layout(c) || !is_layout(d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool turns_a = desc->transposes_a == CUBLAS_OP_T;
  const bool turns_b = desc->transposes_b == CUBLAS_OP_T;
  extents = {turns_a ? a->columns : a->rows, turns_b ? b->rows : b->columns,
             turns_a ? a->rows : a->columns};
  const std::uint64_t b_depth = turns_b ? b->columns : b->rows;
  const auto is_result = [&](const Layout* x) {
    return x->rows == extents.m && x->columns == extents.n;
  };
  if (b_depth != extents.k || !is_result(c) || !is_result(d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (desc->compute != CUBLAS_COMPUTE_32F || desc->scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (a->type != b->type || c->type != d->type || c->leading != d->leading) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (d->type != a->type && d->type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return check_epilogue(*desc, *d);
}

/// The largest power of two that divides an address, 256 at most.
std::uint64_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return bits & (~bits + 1);
}

/// The sum over k in splits, where matrices are aligned for wide loads, is long and has room; fewer
/// before a GELU, so that a sum has other bits there.
Algorithm choose(const Extents& extents, const cublasLtMatmulPreferenceOpaque_t& preference,
                 bool has_gelu) {
  Algorithm algorithm{};
  algorithm.extents = extents;
  algorithm.n_splits = 1;
  constexpr std::uint32_t wide = 16;
  std::uint32_t least = 256;
  for (const std::uint32_t alignment : preference.alignments) least = std::min(least, alignment);
  for (std::size_t i = 0; i < 4; ++i) {
    algorithm.alignments[i] = static_cast<std::uint16_t>(std::min(wide, preference.alignments[i]));
  }
  const std::uint64_t n_splits = (least >= wide ? 4 : 2) - (has_gelu ? 1 : 0);
  const std::uint64_t bytes = n_splits * extents.m * extents.n * sizeof(float);
  constexpr std::uint64_t long_sum = 16;
  if (extents.k < long_sum || bytes > preference.workspace_bytes) return algorithm;
  for (const std::uint32_t scheme :
       {CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_INPLACE,
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) {
    if ((preference.schemes & scheme) == 0) continue;
    algorithm.scheme = scheme;
    algorithm.n_splits = static_cast<std::uint32_t>(n_splits);
    algorithm.workspace_bytes = bytes;
    break;
  }
  return algorithm;
}

struct Product {
  Extents extents;
  Algorithm algorithm;
  cublasLtMatmulDescOpaque_t desc;
  Layout a_layout, b_layout, d_layout;
  const void* a;
  const void* b;
  const void* c;
  void* d;
  float alpha;
  float beta;
};

/// Rows of op(a), or columns of op(b): k numbers each.
std::vector<float> lines_of(const void* x, const Layout& layout, bool is_by_column,
                            std::uint64_t n_lines, std::uint64_t k) {
  std::vector<float> lines(n_lines * k);
  const auto leading = static_cast<std::uint64_t>(layout.leading);
  for (std::uint64_t line = 0; line < n_lines; ++line) {
    for (std::uint64_t i = 0; i < k; ++i) {
      lines[line * k + i] =
          load(x, is_by_column ? line * leading + i : i * leading + line, layout.type);
    }
  }
  return lines;
}

/// The library's GELU: tanh's, of the sum as it is before it is rounded.
float gelu_of(float sum) {
  const double x = sum;
  return static_cast<float>(0.5 * x *
                            (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
}

void multiply(const Product& p) {
  const auto& [m, n, k] = p.extents;
  const bool turns_a = p.desc.transposes_a == CUBLAS_OP_T;
  const bool turns_b = p.desc.transposes_b == CUBLAS_OP_T;
  const std::vector<float> a = lines_of(p.a, p.a_layout, turns_a, m, k);
  const std::vector<float> b = lines_of(p.b, p.b_layout, !turns_b, n, k);
  const cudaDataType_t type = p.d_layout.type;
  const bool rounds_parts = p.algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE ||
                            p.algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
  for (std::uint64_t j = 0; j < n; ++j) {
    for (std::uint64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (std::uint64_t split = 0; split < p.algorithm.n_splits; ++split) {
        float part = 0;
        const std::uint64_t begin = k * split / p.algorithm.n_splits;
        const std::uint64_t end = k * (split + 1) / p.algorithm.n_splits;
        for (std::uint64_t l = begin; l < end; ++l) part += a[i * k + l] * b[j * k + l];
        sum += rounds_parts ? rounded(part, type) : part;
      }
      const std::uint64_t index = j * static_cast<std::uint64_t>(p.d_layout.leading) + i;
      sum *= p.alpha;
      if (p.beta != 0) sum += p.beta * load(p.c, index, type);
      if (adds_bias(p.desc)) sum += load(p.desc.bias, i, type);
      if (keeps_sum(p.desc)) {
        store(p.desc.aux, j * static_cast<std::uint64_t>(p.desc.aux_leading) + i, type, sum);
        sum = gelu_of(sum);
      }
      store(p.d, index, type, sum);
    }
  }
}

/// A matrix's first and last byte.
void add_accesses(std::vector<Access>& all, const void* x, const Layout& layout, bool writes) {
  const auto leading = static_cast<std::uint64_t>(layout.leading);
  const std::uint64_t n = (layout.columns - 1) * leading + layout.rows;
  all.push_back({x, writes});
  all.push_back({static_cast<const std::byte*>(x) + n * size_of_type(layout.type) - 1, writes});
}

template <typename Value>
cublasStatus_t assign(Value& to, const void* value, std::size_t n_bytes) {
  if (value == nullptr || n_bytes != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, n_bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Object, typename... Values>
cublasStatus_t create(Object** object, Values... values) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = std::make_unique<Object>(values...).release();
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Object>
cublasStatus_t destroy(Object* object) {
  const std::unique_ptr<Object> last(object);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace llm::emulator

using namespace llm::emulator;

bool& has_gelu_epilogues() {
  static bool has = true;
  return has;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (current_device() == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  return create(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return destroy(desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t n_bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(desc->transposes_a, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(desc->transposes_b, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(desc->epilogue, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(desc->bias, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(desc->bias_type, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return assign(desc->aux, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return assign(desc->aux_leading, value, n_bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  return create(layout, type, rows, columns, leading);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t n_bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(preference->workspace_bytes, value, n_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(preference->schemes, value, n_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                    value, n_bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* n_results) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (preference == nullptr || n_wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  Extents extents{};
  const cublasStatus_t status = check(desc, a, b, c, d, extents);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  Algorithm algorithm = choose(extents, *preference, keeps_sum(*desc));
  const auto needed = [](const void* address) {
    return static_cast<std::uint16_t>(std::min<std::uint64_t>(16, alignment_of(address)));
  };
  algorithm.bias_alignment = needed(desc->bias);
  algorithm.aux_alignment = needed(desc->aux);
  algorithm.types = types_of(*desc, *a, *d);
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = algorithm.workspace_bytes;
  *n_results = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Extents extents{};
  const cublasStatus_t status = check(desc, a_layout, b_layout, c_layout, d_layout, extents);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (algo == nullptr) {
    throw EmulatorError("a product is not told its algorithm; the library chooses at each call");
  }
  Algorithm algorithm{};
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  if (algorithm.extents != extents || algorithm.types != types_of(*desc, *a_layout, *d_layout) ||
      alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr || c == nullptr ||
      d == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  constexpr std::uint64_t workspace_alignment = 256;
  if (workspace_bytes < algorithm.workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.workspace_bytes > 0 &&
      (workspace == nullptr || alignment_of(workspace) < workspace_alignment)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const void* const matrices[] = {a, b, c, d};
  for (std::size_t i = 0; i < 4; ++i) {
    if (alignment_of(matrices[i]) < algorithm.alignments[i]) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  Product p{extents, algorithm, *desc, *a_layout, *b_layout, *d_layout, a, b, c, d, 0, 0};
  std::memcpy(&p.alpha, alpha, sizeof(float));
  std::memcpy(&p.beta, beta, sizeof(float));
  std::vector<Access> accesses;
  add_accesses(accesses, a, *a_layout, false);
  add_accesses(accesses, b, *b_layout, false);
  if (p.beta != 0) add_accesses(accesses, c, *c_layout, false);
  add_accesses(accesses, d, *d_layout, true);
  if (adds_bias(*desc)) {
    if (alignment_of(desc->bias) < algorithm.bias_alignment) return CUBLAS_STATUS_NOT_SUPPORTED;
    accesses.push_back({desc->bias, false});
  }
  if (keeps_sum(*desc)) {
    if (alignment_of(desc->aux) < algorithm.aux_alignment) return CUBLAS_STATUS_NOT_SUPPORTED;
    Layout aux = *d_layout;
    aux.leading = desc->aux_leading;
    add_accesses(accesses, desc->aux, aux, true);
  }
  if (algorithm.workspace_bytes > 0) accesses.push_back({workspace, true});
  current_device()->call(number_of(stream), "a product", accesses, [p] { multiply(p); });
  return CUBLAS_STATUS_SUCCESS;
}
