#include "tensor/ops/checks.h"

#include <string>

namespace llm {
namespace {

std::string described(const View& view) {
  return std::string(name_of(view.dtype())) + " " + to_string(view.shape());
}

}  // namespace

void expect(const View& view, const char* name, Dtype dtype, const Shape& shape) {
  const bool holds = view.device() == Device::cpu && view.dtype() == dtype && view.shape() == shape;
  CHECK_CONTRACT(holds, std::string(name) + " is " + name_of(dtype) + " " + to_string(shape) +
                            " on the CPU, not " + described(view));
}

void expect_matrix(const View& view, const char* name) {
  const bool holds =
      view.device() == Device::cpu && view.dtype() == Dtype::f32 && view.shape().n_dims() == 2;
  CHECK_CONTRACT(holds, std::string(name) + " is an f32 matrix on the CPU, not " + described(view));
}

void expect_elements(const View& view, const char* name, std::int64_t n_elements) {
  const bool holds =
      view.device() == Device::cpu && view.dtype() == Dtype::f32 && view.n_elements() == n_elements;
  CHECK_CONTRACT(holds, std::string(name) + " is f32 with " + std::to_string(n_elements) +
                            " elements on the CPU, not " + described(view));
}

}  // namespace llm
