#include <cublasLt.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "tests/support/cuda/error_of.h"

using namespace llm::emulator;

namespace {

constexpr std::size_t workspace_bytes = 4096;

/// d (m, n) = a (m, k) b (k, n), all f32 and column-major, on a device with two streams.
class Rig {
 public:
  Rig() : device_(1) {
    current_device() = &device_;
    for (cudaStream_t& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (float** const matrix : {&a, &b, &d}) *matrix = static_cast<float*>(memory(2048));
    workspace = memory(workspace_bytes + 256);
    cudaStreamSynchronize(streams[0]);
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulPreferenceCreate(&preference);
    std::uint64_t limit = workspace_bytes;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &limit, sizeof(limit));
    layouts({8, 32}, {32, 4}, {8, 4});
  }
  ~Rig() {
    drop_layouts();
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
    current_device() = nullptr;
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void* memory(std::size_t n_bytes) {
    void* memory = nullptr;
    cudaMallocAsync(&memory, n_bytes, streams[0]);
    return memory;
  }
  struct Extents {
    std::uint64_t rows, columns;
    std::int64_t leading = 0;  // 0: the rows
  };
  void layouts(Extents of_a, Extents of_b, Extents of_d, cudaDataType_t type = CUDA_R_32F) {
    drop_layouts();
    const auto create = [](cublasLtMatrixLayout_t* layout, Extents e, cudaDataType_t of) {
      cublasLtMatrixLayoutCreate(layout, of, e.rows, e.columns,
                                 e.leading ? e.leading : static_cast<std::int64_t>(e.rows));
    };
    create(&a_layout, of_a, CUDA_R_32F);
    create(&b_layout, of_b, CUDA_R_32F);
    create(&d_layout, of_d, type);
  }
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    REQUIRE(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)) ==
            CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t choose() {
    int n = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, desc, a_layout, b_layout, d_layout, d_layout,
                                          preference, 1, &chosen, &n);
  }
  cublasStatus_t multiply(int stream = 0, std::size_t n_bytes = workspace_bytes,
                          std::size_t offset = 0) {
    const float one = 1;
    const float zero = 0;
    return cublasLtMatmul(handle, desc, &one, a, a_layout, b, b_layout, &zero, d, d_layout, d,
                          d_layout, &chosen.algo, static_cast<std::byte*>(workspace) + offset,
                          n_bytes, streams[stream]);
  }

  cudaStream_t streams[2] = {};
  float* a = nullptr;
  float* b = nullptr;
  float* d = nullptr;
  void* workspace = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr, d_layout = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};

 private:
  void drop_layouts() {
    for (const cublasLtMatrixLayout_t layout : {a_layout, b_layout, d_layout}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
  }
  Device device_;
};

}  // namespace

TEST_CASE("emulated cuBLASLt refuses layouts, types and epilogues that the library refuses") {
  Rig rig;
  REQUIRE(rig.choose() == CUBLAS_STATUS_SUCCESS);
  rig.layouts({8, 32, 7}, {32, 4}, {8, 4});
  CHECK(rig.choose() == CUBLAS_STATUS_INVALID_VALUE);
  rig.layouts({8, 32}, {16, 4}, {8, 4});
  CHECK(rig.choose() == CUBLAS_STATUS_INVALID_VALUE);
  rig.layouts({8, 0}, {0, 4}, {8, 4});
  CHECK(rig.choose() == CUBLAS_STATUS_INVALID_VALUE);
  rig.layouts({8, 32}, {32, 4}, {8, 4}, CUDA_R_16F);
  CHECK(rig.choose() == CUBLAS_STATUS_NOT_SUPPORTED);
  rig.layouts({8, 32}, {32, 4}, {8, 4});
  const std::uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  cublasLtMatmulDescSetAttribute(rig.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                 sizeof(epilogue));
  CHECK(rig.choose() == CUBLAS_STATUS_INVALID_VALUE);  // no bias is given
  const void* const bias = rig.b;
  cublasLtMatmulDescSetAttribute(rig.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
  CHECK(rig.choose() == CUBLAS_STATUS_SUCCESS);
  const std::int32_t type = CUDA_R_16BF;  // d is f32
  cublasLtMatmulDescSetAttribute(rig.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                 sizeof(type));
  CHECK(rig.choose() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(cublasLtMatmulDescSetAttribute(rig.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, 8) ==
        CUBLAS_STATUS_INVALID_VALUE);
}

TEST_CASE("emulated cuBLASLt keeps a GELU's sum in rows of whole groups of 8, aligned as chosen") {
  Rig rig;
  auto* const sum = static_cast<float*>(rig.memory(2048));
  rig.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_GELU_AUX});
  CHECK(rig.choose() == CUBLAS_STATUS_INVALID_VALUE);  // neither room nor its rows are given
  rig.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, sum);
  for (const std::int64_t leading : {0, 4, 12}) {  // of 8 rows
    rig.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading);
    CHECK(rig.choose() == CUBLAS_STATUS_INVALID_VALUE);
  }
  rig.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{8});
  has_gelu_epilogues() = false;
  CHECK(rig.choose() == CUBLAS_STATUS_NOT_SUPPORTED);
  has_gelu_epilogues() = true;
  REQUIRE(rig.choose() == CUBLAS_STATUS_SUCCESS);
  CHECK(rig.multiply() == CUBLAS_STATUS_SUCCESS);
  rig.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, sum + 1);
  CHECK(rig.multiply() == CUBLAS_STATUS_NOT_SUPPORTED);
  rig.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, sum + 512 - 28);
  CHECK_THAT(error_of([&] { rig.multiply(); }), Catch::Contains("memory that was never allocated"));
}

TEST_CASE("emulated cuBLASLt refuses a workspace too small or crooked, and matrices less aligned") {
  Rig rig;
  REQUIRE(rig.choose() == CUBLAS_STATUS_SUCCESS);
  REQUIRE(rig.chosen.workspaceSize > 0);
  CHECK(rig.multiply(0, rig.chosen.workspaceSize - 1) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(rig.multiply(0, workspace_bytes, 16) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(rig.multiply() == CUBLAS_STATUS_SUCCESS);
  ++rig.a;
  CHECK(rig.multiply() == CUBLAS_STATUS_NOT_SUPPORTED);
  --rig.a;
  rig.layouts({8, 16}, {16, 4}, {8, 4});
  CHECK(rig.multiply() == CUBLAS_STATUS_INVALID_VALUE);  // the algorithm is of other extents
}

TEST_CASE("emulated cuBLASLt runs in its stream: a workspace is of one stream at a time") {
  Rig rig;
  REQUIRE(rig.choose() == CUBLAS_STATUS_SUCCESS);
  float* const other = rig.d + 64;
  CHECK(rig.multiply(0) == CUBLAS_STATUS_SUCCESS);
  rig.d = other;
  CHECK_THAT(error_of([&] { rig.multiply(1); }),
             Catch::Contains("a product uses memory before an event that says a product, on "
                             "another stream, has written it"));
}

TEST_CASE("emulated cuBLASLt finds a matrix that ends outside its memory") {
  Rig rig;
  REQUIRE(rig.choose() == CUBLAS_STATUS_SUCCESS);
  rig.a += 512 - 8 * 32 + 4;
  CHECK_THAT(error_of([&] { rig.multiply(); }), Catch::Contains("memory that was never allocated"));
}

TEST_CASE("emulated cuBLASLt is told its algorithm, and is not there without a device") {
  Rig rig;
  const float one = 1;
  CHECK_THAT(error_of([&] {
               cublasLtMatmul(rig.handle, rig.desc, &one, rig.a, rig.a_layout, rig.b, rig.b_layout,
                              &one, rig.d, rig.d_layout, rig.d, rig.d_layout, nullptr, nullptr, 0,
                              rig.streams[0]);
             }),
             Catch::Contains("not told its algorithm"));
  Device* const device = current_device();
  current_device() = nullptr;
  cublasLtHandle_t handle = nullptr;
  CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_NOT_INITIALIZED);
  current_device() = device;
}
