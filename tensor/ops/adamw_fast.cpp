#include "tensor/ops/adamw_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/adamw_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

template <typename T>
void update(const AdamwFactors& f, const float* grads, float* weights, float* m, float* v, T* copy,
            std::int64_t n) {
  const Lanes keep_m = broadcast(f.keep_m);
  const Lanes take_m = broadcast(f.take_m);
  const Lanes keep_v = broadcast(f.keep_v);
  const Lanes take_v = broadcast(f.take_v);
  const Lanes minus_decay = broadcast(-f.decay);
  const Lanes step_size = broadcast(f.step_size);
  const Lanes v_scale = broadcast(f.v_scale);
  const Lanes epsilon = broadcast(f.epsilon);
  const Lanes grad_scale = broadcast(f.grad_scale);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    const std::int64_t left = n - i;
    const Lanes g = grad_scale * load(grads + i, left);
    const Lanes m_i = multiply_add(keep_m, load(m + i, left), take_m * g);
    const Lanes v_i = multiply_add(keep_v, load(v + i, left), take_v * (g * g));
    const Lanes w = load(weights + i, left);
    const Lanes step = step_size * m_i / (square_root(v_scale * v_i) + epsilon);
    store(m_i, m + i, left);
    store(v_i, v + i, left);
    const Lanes updated = multiply_add(minus_decay, w, w) - step;
    store(updated, weights + i, left);
    if (copy) store(updated, copy + i, left);
  }
}

void adamw(const AdamwFactors& f, const float* grads, float* weights, float* m, float* v,
           MutElements copy, std::int64_t n) {
  with_type_of(copy.dtype,
               [&](auto type) { update(f, grads, weights, m, v, copy.as<decltype(type)>(), n); });
}

using WideTag = hn::CappedTag<double, n_lanes>;
using NarrowTag = hn::Rebind<float, WideTag>;

double sum_of_squares(const float* x, std::int64_t n) {
  constexpr WideTag d;
  constexpr NarrowTag d_narrow;
  constexpr std::int64_t width = hn::MaxLanes(d);
  constexpr int n_parts = static_cast<int>(n_lanes / width);
  hn::Vec<WideTag> sums[n_parts];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    alignas(64) float buffer[n_lanes] = {};
    const float* from = x + i;
    if (n - i < n_lanes) {
      std::memcpy(buffer, from, static_cast<std::size_t>(n - i) * sizeof(float));
      from = buffer;
    }
    for (int p = 0; p < n_parts; ++p) {
      const auto wide = hn::PromoteTo(d, hn::LoadU(d_narrow, from + p * width));
      sums[p] = hn::MulAdd(wide, wide, sums[p]);  // a square of f32 is exact in f64
    }
  }
  alignas(64) double lane[n_lanes];
  for (int p = 0; p < n_parts; ++p) hn::Store(sums[p], d, lane + p * width);
  for (std::int64_t half = n_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(adamw);
HWY_EXPORT(sum_of_squares);
namespace fast {

void adamw(const AdamwFactors& f, const float* grads, float* weights, float* m, float* v,
           MutElements copy, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(adamw)(f, grads, weights, m, v, copy, n);
}

double sum_of_squares(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(sum_of_squares)(x, n);
}

}  // namespace fast
}  // namespace llm
#endif
