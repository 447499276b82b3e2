#pragma once
#include "tensor/view.h"

namespace llm {

/// For an op's checks when it is called: `view` lies on the CPU, holds `dtype` and has `shape`.
/// Throws ContractBroken naming the argument and both shapes.
void expect(const View& view, const char* name, Dtype dtype, const Shape& shape);

/// The same for f32.
inline void expect(const View& view, const char* name, const Shape& shape) {
  expect(view, name, Dtype::f32, shape);
}

/// An f32 matrix on the CPU, whatever its extents.
void expect_matrix(const View& view, const char* name);

/// f32 elements on the CPU, as many as `n_elements` under whatever shape.
void expect_elements(const View& view, const char* name, std::int64_t n_elements);

}  // namespace llm
