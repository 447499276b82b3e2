#pragma once
#include "tensor/view.h"

namespace llm {

/// For an op's checks when it is called: `view` holds `dtype` and has `shape`.
/// Throws ContractBroken naming the argument and both shapes. Where tensors lie is checked by
/// issued() in tensor/cuda/issue.h.
void expect(const View& view, const char* name, Dtype dtype, const Shape& shape);

/// The same for f32.
inline void expect(const View& view, const char* name, const Shape& shape) {
  expect(view, name, Dtype::f32, shape);
}

/// A matrix of `dtype`, whatever its extents.
void expect_matrix(const View& view, const char* name, Dtype dtype = Dtype::f32);

/// Elements of `dtype`, as many as `n_elements` under whatever shape.
void expect_elements(const View& view, const char* name, std::int64_t n_elements,
                     Dtype dtype = Dtype::f32);

/// The dtype that an op computes in: that of `view`, which holds f32, bf16 or f16.
Dtype compute_dtype(const View& view, const char* name);

}  // namespace llm
