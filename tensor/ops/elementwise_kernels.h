#pragma once
#include <cstdint>

#include "tensor/ops/elements.h"

/// Bodies of elementwise.h on contiguous elements. `plain` is the definition; `fast` has the same
/// bits.
namespace llm::plain {
/// y[i] += x[i]
void add(const float* x, float* y, std::int64_t n);
/// y[r, c] += bias[c]
void add_rows(const float* bias, float* y, std::int64_t n_rows, std::int64_t width);
/// out[c] = (or +=, where `accumulate`) the sum over r of y[r * stride + c], r in order.
void sum_rows(const float* y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out);
/// out[c * out_stride + r] = x[r * stride + c]
void transpose(const float* x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
               float* out, std::int64_t out_stride);
}  // namespace llm::plain

/// x and y may differ in dtype; the biases and sums are f32.
namespace llm::fast {
/// y[i] = x[i]
void convert(Elements x, MutElements y, std::int64_t n);
/// y[r * y_stride + c] = x[r * x_stride + c] for c < width
void convert_rows(Elements x, std::int64_t x_stride, std::int64_t n_rows, std::int64_t width,
                  MutElements y, std::int64_t y_stride);
void add(Elements x, MutElements y, std::int64_t n);
void add_rows(const float* bias, MutElements y, std::int64_t n_rows, std::int64_t width);
void sum_rows(Elements y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out);
void transpose(Elements x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
               float* out, std::int64_t out_stride);
}  // namespace llm::fast
