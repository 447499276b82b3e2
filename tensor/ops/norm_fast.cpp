#include "tensor/ops/norm_kernels.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/norm_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

template <typename T>
LANES_INLINE float row_mean(const T* x, std::int64_t width) {
  Lanes sum = broadcast(0);
  for (std::int64_t c = 0; c < width; c += n_lanes) sum = sum + load(x + c, width - c);
  return sum_of_lanes(sum) / static_cast<float>(width);
}

/// The mean of (x - center)^2.
template <typename T>
LANES_INLINE float mean_square(const T* x, float center, std::int64_t width) {
  const Lanes centers = broadcast(center);
  Lanes sum = broadcast(0);
  for (std::int64_t c = 0; c < width; c += n_lanes) {
    const Lanes difference = first_lanes(width - c, load(x + c, width - c) - centers, 0);
    sum = multiply_add(difference, difference, sum);
  }
  return sum_of_lanes(sum) / static_cast<float>(width);
}

template <typename T>
void layer_forward(const NormForward& p) {
  for (std::int64_t r = 0; r < p.n_rows; ++r) {
    const T* x = p.x.as<T>() + r * p.width;
    T* y = p.y.as<T>() + r * p.width;
    const float mean = row_mean(x, p.width);
    const float rstd = 1 / std::sqrt(mean_square(x, mean, p.width) + p.epsilon);
    const Lanes means = broadcast(mean);
    const Lanes rstds = broadcast(rstd);
    for (std::int64_t c = 0; c < p.width; c += n_lanes) {
      const std::int64_t n = p.width - c;
      const Lanes bias = p.bias ? load(p.bias + c, n) : broadcast(0);
      store(multiply_add((load(x + c, n) - means) * rstds, load(p.weight + c, n), bias), y + c, n);
    }
    p.mean[r] = mean;
    p.rstd[r] = rstd;
  }
}

template <typename T>
void rms_forward(const NormForward& p) {
  for (std::int64_t r = 0; r < p.n_rows; ++r) {
    const T* x = p.x.as<T>() + r * p.width;
    T* y = p.y.as<T>() + r * p.width;
    const float rstd = 1 / std::sqrt(mean_square(x, 0, p.width) + p.epsilon);
    const Lanes rstds = broadcast(rstd);
    for (std::int64_t c = 0; c < p.width; c += n_lanes) {
      const std::int64_t n = p.width - c;
      store(load(x + c, n) * rstds * load(p.weight + c, n), y + c, n);
    }
    p.rstd[r] = rstd;
  }
}

/// Both norms: rms_norm is the case without a mean, where the term of the mean of g falls away.
template <bool has_mean, typename T>
LANES_INLINE void backward_row(const NormBackward& p, std::int64_t r) {
  const T* x = p.x.as<T>() + r * p.width;
  const T* dy = p.dy.as<T>() + r * p.width;
  T* dx = p.dx.as<T>() + r * p.width;
  const Lanes mean = broadcast(has_mean ? p.mean[r] : 0);
  const Lanes rstd = broadcast(p.rstd[r]);
  Lanes sum_g = broadcast(0);
  Lanes sum_gh = broadcast(0);
  for (std::int64_t c = 0; c < p.width; c += n_lanes) {
    const std::int64_t n = p.width - c;
    const Lanes dy_c = load(dy + c, n);
    const Lanes h = (load(x + c, n) - mean) * rstd;
    const Lanes g = dy_c * load(p.weight + c, n);
    sum_g = sum_g + g;
    sum_gh = multiply_add(g, h, sum_gh);
    store(multiply_add(dy_c, h, load(p.dweight + c, n)), p.dweight + c, n);
    if (p.dbias) store(load(p.dbias + c, n) + dy_c, p.dbias + c, n);
  }
  const auto width = static_cast<float>(p.width);
  const Lanes mean_g = broadcast(has_mean ? sum_of_lanes(sum_g) / width : 0);
  const Lanes minus_mean_gh = broadcast(-sum_of_lanes(sum_gh) / width);
  for (std::int64_t c = 0; c < p.width; c += n_lanes) {
    const std::int64_t n = p.width - c;
    const Lanes h = (load(x + c, n) - mean) * rstd;
    const Lanes g = load(dy + c, n) * load(p.weight + c, n);
    const Lanes grad = rstd * multiply_add(h, minus_mean_gh, g - mean_g);
    store(p.add_dx ? load(dx + c, n) + grad : grad, dx + c, n);
  }
}

template <bool has_mean, typename T>
void backward(const NormBackward& p) {
  std::fill(p.dweight, p.dweight + p.width, 0.0f);
  if (p.dbias) std::fill(p.dbias, p.dbias + p.width, 0.0f);
  for (std::int64_t r = 0; r < p.n_rows; ++r) backward_row<has_mean, T>(p, r);
}

void layer_norm_forward(const NormForward& p) {
  with_type_of(p.x.dtype, [&](auto type) { layer_forward<decltype(type)>(p); });
}
void layer_norm_backward(const NormBackward& p) {
  with_type_of(p.x.dtype, [&](auto type) { backward<true, decltype(type)>(p); });
}
void rms_norm_forward(const NormForward& p) {
  with_type_of(p.x.dtype, [&](auto type) { rms_forward<decltype(type)>(p); });
}
void rms_norm_backward(const NormBackward& p) {
  with_type_of(p.x.dtype, [&](auto type) { backward<false, decltype(type)>(p); });
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(layer_norm_forward);
HWY_EXPORT(layer_norm_backward);
HWY_EXPORT(rms_norm_forward);
HWY_EXPORT(rms_norm_backward);
namespace fast {

void layer_norm_forward(const NormForward& p) {
  HWY_DYNAMIC_DISPATCH(layer_norm_forward)(p);
}
void layer_norm_backward(const NormBackward& p) {
  HWY_DYNAMIC_DISPATCH(layer_norm_backward)(p);
}
void rms_norm_forward(const NormForward& p) {
  HWY_DYNAMIC_DISPATCH(rms_norm_forward)(p);
}
void rms_norm_backward(const NormBackward& p) {
  HWY_DYNAMIC_DISPATCH(rms_norm_backward)(p);
}

}  // namespace fast
}  // namespace llm
#endif
