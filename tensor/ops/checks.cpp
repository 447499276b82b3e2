#include "tensor/ops/checks.h"

#include <string>

namespace llm {
namespace {

std::string described(const View& view) {
  return std::string(name_of(view.dtype())) + " " + to_string(view.shape());
}

}  // namespace

void expect(const View& view, const char* name, Dtype dtype, const Shape& shape) {
  const bool holds = view.dtype() == dtype && view.shape() == shape;
  CHECK_CONTRACT(holds, std::string(name) + " is " + name_of(dtype) + " " + to_string(shape) +
                            ", not " + described(view));
}

void expect_matrix(const View& view, const char* name, Dtype dtype) {
  const bool holds = view.dtype() == dtype && view.shape().n_dims() == 2;
  CHECK_CONTRACT(
      holds, std::string(name) + " is a matrix of " + name_of(dtype) + ", not " + described(view));
}

void expect_elements(const View& view, const char* name, std::int64_t n_elements, Dtype dtype) {
  const bool holds = view.dtype() == dtype && view.n_elements() == n_elements;
  CHECK_CONTRACT(holds, std::string(name) + " is " + name_of(dtype) + " with " +
                            std::to_string(n_elements) + " elements, not " + described(view));
}

Dtype compute_dtype(const View& view, const char* name) {
  const Dtype dtype = view.dtype();
  const bool holds = dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
  CHECK_CONTRACT(holds, std::string(name) + " is f32, bf16 or f16, not " + described(view));
  return dtype;
}

}  // namespace llm
