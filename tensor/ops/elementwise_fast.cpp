#include "tensor/ops/elementwise_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/elementwise_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

void add(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes)
    store(load(y + i, n - i) + load(x + i, n - i), y + i, n - i);
}

void add_rows(const float* bias, float* y, std::int64_t n_rows, std::int64_t width) {
  for (std::int64_t r = 0; r < n_rows; ++r) add(bias, y + r * width, width);
}

/// Four times 16 columns at once, so that a row is read in whole cache lines.
void sum_rows(const float* y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out) {
  for (std::int64_t c = 0; c < width; c += 4 * n_lanes) {
    Lanes sums[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
    std::int64_t n[4];
    for (int k = 0; k < 4; ++k) {
      n[k] = width - c - k * n_lanes;
      n[k] = n[k] < 0 ? 0 : n[k];
    }
    if (n[3] >= n_lanes) {
      for (std::int64_t r = 0; r < n_rows; ++r) {
        const float* row = y + r * stride + c;
        for (int k = 0; k < 4; ++k) sums[k] = sums[k] + load(row + k * n_lanes);
      }
    } else {
      for (std::int64_t r = 0; r < n_rows; ++r) {
        const float* row = y + r * stride + c;
        for (int k = 0; k < 4; ++k) {
          if (n[k] > 0) sums[k] = sums[k] + load(row + k * n_lanes, n[k]);
        }
      }
    }
    for (int k = 0; k < 4; ++k) {
      if (n[k] == 0) continue;
      float* into = out + c + k * n_lanes;
      store(accumulate ? load(into, n[k]) + sums[k] : sums[k], into, n[k]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(add);
HWY_EXPORT(add_rows);
HWY_EXPORT(sum_rows);
HWY_EXPORT(transpose);
namespace fast {

void add(const float* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(add)(x, y, n);
}

void add_rows(const float* bias, float* y, std::int64_t n_rows, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(add_rows)(bias, y, n_rows, width);
}

void sum_rows(const float* y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out) {
  HWY_DYNAMIC_DISPATCH(sum_rows)(y, n_rows, stride, width, accumulate, out);
}

void transpose(const float* x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
               float* out, std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose)(x, stride, n_rows, n_columns, out, out_stride);
}

}  // namespace fast
}  // namespace llm
#endif
