#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <string>

#include "src/base/error.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/products.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

namespace {

constexpr std::size_t workspace_bytes = 1 << 16;

struct Layer {
  Dtype dtype;
  std::int64_t n, in, out;
};

/// The same values, `offset` elements into memory that is aligned and ends later.
MutView upload_at(DeviceRig& rig, std::int64_t offset, std::uint64_t seed, Dtype dtype,
                  Shape shape) {
  const Values values(seed, dtype, shape);
  const Values room(0, dtype, {offset + shape.n_elements() + 1});
  std::memcpy(part(room.view, offset, shape).data(), values.view.data(),
              static_cast<std::size_t>(values.view.n_bytes()));
  return part(rig.upload(room), offset, shape);
}

/// y, dx and dW on a fresh device.
std::vector<float> results_of(const Layer& layer, std::uint64_t seed, std::int64_t offset) {
  const auto [dtype, n, in, out] = layer;
  DeviceRig rig(seed);
  std::optional<cuda::Products> products(std::in_place, rig.stream, workspace_bytes);
  const MutView x = upload_at(rig, offset, 1, dtype, {n, in});
  const MutView weight = upload_at(rig, offset, 2, dtype, {out, in});
  const MutView bias = upload_at(rig, offset, 3, Dtype::f32, {out});
  const MutView dy = upload_at(rig, offset, 4, dtype, {n, out});
  const MutView y = upload_at(rig, offset, 0, dtype, {n, out});
  const MutView dx = upload_at(rig, offset, 0, dtype, {n, in});
  const MutView dweight = upload_at(rig, offset, 5, Dtype::f32, {out, in});
  cuda::linear_forward(rig.stream, x, weight, bias, y);
  cuda::linear_backward_input(rig.stream, dy, weight, Write::set, dx);
  cuda::linear_backward_weight(rig.stream, x, dy, Write::add, dweight, MutView());
  products.reset();
  std::vector<float> results;
  for (const MutView& result : {y, dx, dweight}) {
    if (result.n_elements() == 0) continue;
    const Values copy(0, result.dtype(), result.shape());
    rig.download(result, copy);
    for (std::int64_t i = 0; i < copy.view.n_elements(); ++i) results.push_back(copy[i]);
  }
  return results;
}

std::string broken_contract_of(const Layer& layer, std::int64_t offset) {
  try {
    results_of(layer, 1, offset);
  } catch (const ContractBroken& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("the library's products have equal bits in every run and wherever matrices lie") {
  for (const Dtype dtype : compute_dtypes) {
    for (const Layer layer : {Layer{dtype, 21, 35, 18}, Layer{dtype, 24, 48, 32}}) {
      INFO(name_of(dtype) << ", " << layer.in << " inputs");
      const std::vector<float> first = results_of(layer, 0, 0);
      for (std::uint64_t seed = 1; seed <= n_seeds; ++seed) {
        CHECK(results_of(layer, seed, 0) == first);
      }
      CHECK(results_of(layer, 1, 8) == first);
    }
  }
}

TEST_CASE("a matrix that is aligned less than its rows is refused, and said which") {
  CHECK(broken_contract_of({Dtype::bf16, 21, 35, 17}, 1) == "none");
  CHECK_THAT(broken_contract_of({Dtype::bf16, 24, 48, 32}, 1),
             Catch::Contains("a matrix (24, 48) begins at a multiple of 16 bytes"));
}

TEST_CASE("the library's products are of their stream alone, and end with their object") {
  DeviceRig rig(1);
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  CHECK(cuda::Products::of(rig.stream) == nullptr);
  {
    const cuda::Products products(rig.stream, workspace_bytes);
    CHECK(cuda::Products::of(rig.stream) == &products);
    CHECK(cuda::Products::of(other) == nullptr);
    CHECK_THROWS_AS(cuda::Products(rig.stream, workspace_bytes), ContractBroken);
    CHECK(cuda::Products::of(rig.stream) == &products);
  }
  CHECK(cuda::Products::of(rig.stream) == nullptr);
}

TEST_CASE("a product that the library refuses names the call and the shapes") {
  DeviceRig rig(1);
  cuda::Products products(rig.stream, workspace_bytes);
  const MutView x = upload_at(rig, 0, 1, Dtype::bf16, {4, 8});
  const MutView weight = upload_at(rig, 0, 2, Dtype::f32, {16, 8});
  const MutView y = upload_at(rig, 0, 0, Dtype::f32, {4, 16});
  CHECK_THROWS_WITH(
      products.multiply({x}, {weight, true}, View(), Write::set, y),
      Catch::Contains("cublasLtMatmulAlgoGetHeuristic of f32 (4, 16) = bf16 (4, 8) (16, 8)^T: "
                      "CUBLAS_STATUS_NOT_SUPPORTED"));
}

TEST_CASE("where an extent is 0 the library is not asked") {
  CHECK(results_of({Dtype::bf16, 0, 8, 4}, 1, 1).size() == 4 * 8);
  CHECK(results_of({Dtype::f32, 3, 0, 4}, 1, 1).size() == 3 * 4);
}
