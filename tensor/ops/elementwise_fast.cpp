#include "tensor/ops/elementwise_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/elementwise_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

template <typename From, typename To>
void convert_all(const From* x, To* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) store(load(x + i, n - i), y + i, n - i);
}

template <typename From, typename To>
void add_all(const From* x, To* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    store(load(y + i, n - i) + load(x + i, n - i), y + i, n - i);
  }
}

void convert_rows(Elements x, std::int64_t x_stride, std::int64_t n_rows, std::int64_t width,
                  MutElements y, std::int64_t y_stride) {
  with_type_of(x.dtype, [&](auto from) {
    with_type_of(y.dtype, [&](auto to) {
      for (std::int64_t r = 0; r < n_rows; ++r) {
        convert_all(x.as<decltype(from)>() + r * x_stride, y.as<decltype(to)>() + r * y_stride,
                    width);
      }
    });
  });
}

void add(Elements x, MutElements y, std::int64_t n) {
  with_type_of(x.dtype, [&](auto from) {
    with_type_of(y.dtype,
                 [&](auto to) { add_all(x.as<decltype(from)>(), y.as<decltype(to)>(), n); });
  });
}

void add_rows(const float* bias, MutElements y, std::int64_t n_rows, std::int64_t width) {
  for (std::int64_t r = 0; r < n_rows; ++r) add(bias, y + r * width, width);
}

/// Four times 16 columns at once, so that a row is read in whole cache lines.
template <typename T>
void sum_all(const T* y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
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
        const T* row = y + r * stride + c;
        for (int k = 0; k < 4; ++k) sums[k] = sums[k] + load(row + k * n_lanes);
      }
    } else {
      for (std::int64_t r = 0; r < n_rows; ++r) {
        const T* row = y + r * stride + c;
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

void sum_rows(Elements y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out) {
  with_type_of(y.dtype, [&](auto type) {
    sum_all(y.as<decltype(type)>(), n_rows, stride, width, accumulate, out);
  });
}

void transpose_to_f32(Elements x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
                      float* out, std::int64_t out_stride) {
  with_type_of(x.dtype, [&](auto type) {
    transpose(x.as<decltype(type)>(), stride, n_rows, n_columns, out, out_stride);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(convert_rows);
HWY_EXPORT(transpose_to_f32);
HWY_EXPORT(add);
HWY_EXPORT(add_rows);
HWY_EXPORT(sum_rows);
namespace fast {

void convert(Elements x, MutElements y, std::int64_t n) {
  convert_rows(x, 0, 1, n, y, 0);
}

void convert_rows(Elements x, std::int64_t x_stride, std::int64_t n_rows, std::int64_t width,
                  MutElements y, std::int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(convert_rows)(x, x_stride, n_rows, width, y, y_stride);
}

void add(Elements x, MutElements y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(add)(x, y, n);
}

void add_rows(const float* bias, MutElements y, std::int64_t n_rows, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(add_rows)(bias, y, n_rows, width);
}

void sum_rows(Elements y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out) {
  HWY_DYNAMIC_DISPATCH(sum_rows)(y, n_rows, stride, width, accumulate, out);
}

void transpose(Elements x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
               float* out, std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_to_f32)(x, stride, n_rows, n_columns, out, out_stride);
}

}  // namespace fast
}  // namespace llm
#endif
