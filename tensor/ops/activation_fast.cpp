#include "tensor/ops/activation_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/activation_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

struct ValueAndSlope {
  Lanes value;
  Lanes slope;
};

/// The normal distribution's tail by Abramowitz and Stegun 7.1.26 (absolute error 7.5e-8): one
/// exponential serves it and the density.
struct Gelu {
  static LANES_INLINE ValueAndSlope at(const Lanes& x) {
    const Lanes size = absolute(x);
    const Lanes bell = exponential(broadcast(-0.5f) * x * x);
    const Lanes one = broadcast(1);
    const Lanes t = one / multiply_add(size, broadcast(0.3275911f * 0.70710678f), one);
    Lanes sum = broadcast(0.5f * 1.061405429f);
    sum = multiply_add(sum, t, broadcast(0.5f * -1.453152027f));
    sum = multiply_add(sum, t, broadcast(0.5f * 1.421413741f));
    sum = multiply_add(sum, t, broadcast(0.5f * -0.284496736f));
    sum = multiply_add(sum, t, broadcast(0.5f * 0.254829592f));
    const Lanes tail = sum * t * bell;
    const Lanes cdf = select_positive(x, one - tail, tail);
    return {x * cdf, multiply_add(x * broadcast(0.39894228f), bell, cdf)};
  }
};

/// 0.5 (1 + tanh u) is the sigmoid of 2 u.
struct GeluTanh {
  static LANES_INLINE ValueAndSlope at(const Lanes& x) {
    const Lanes one = broadcast(1);
    const Lanes square = x * x;
    const Lanes twice_root = broadcast(2 * 0.79788456f);
    const Lanes s = sigmoid(twice_root * x * multiply_add(square, broadcast(0.044715f), one));
    const Lanes inner = twice_root * multiply_add(square, broadcast(3 * 0.044715f), one);
    const Lanes value = x * s;
    return {value, multiply_add(value * (one - s), inner, s)};
  }
};

struct Silu {
  static LANES_INLINE ValueAndSlope at(const Lanes& x) {
    const Lanes one = broadcast(1);
    const Lanes s = sigmoid(x);
    return {x * s, s * multiply_add(x, one - s, one)};
  }
};

struct Relu {
  static LANES_INLINE ValueAndSlope at(const Lanes& x) {
    const Lanes zero = broadcast(0);
    return {select_positive(x, x, zero), select_positive(x, broadcast(1), zero)};
  }
};

template <typename F, typename T>
void forward(const T* x, T* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 4 * n_lanes <= n; i += 4 * n_lanes) {
    Lanes v[4];
    for (int k = 0; k < 4; ++k) v[k] = load(x + i + k * n_lanes);
    for (int k = 0; k < 4; ++k) v[k] = F::at(v[k]).value;
    for (int k = 0; k < 4; ++k) store(v[k], y + i + k * n_lanes);
  }
  for (; i < n; i += n_lanes) {
    store(F::at(load(x + i, n - i)).value, y + i, n - i);
  }
}

template <typename F, typename T>
void backward(const T* x, const T* dy, T* dx, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 4 * n_lanes <= n; i += 4 * n_lanes) {
    Lanes v[4];
    for (int k = 0; k < 4; ++k) v[k] = load(x + i + k * n_lanes);
    for (int k = 0; k < 4; ++k) v[k] = F::at(v[k]).slope;
    for (int k = 0; k < 4; ++k) store(v[k] * load(dy + i + k * n_lanes), dx + i + k * n_lanes);
  }
  for (; i < n; i += n_lanes) {
    const Lanes slope = F::at(load(x + i, n - i)).slope;
    store(slope * load(dy + i, n - i), dx + i, n - i);
  }
}

template <typename F, typename T>
void gated(const T* gate, const T* up, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    const Lanes value = F::at(load(gate + i, n - i)).value;
    store(value * load(up + i, n - i), y + i, n - i);
  }
}

template <typename F, typename T>
void gated_back(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += n_lanes) {
    const ValueAndSlope at = F::at(load(gate + i, n - i));
    const Lanes dy_i = load(dy + i, n - i);
    store(dy_i * load(up + i, n - i) * at.slope, dgate + i, n - i);
    store(dy_i * at.value, dup + i, n - i);
  }
}

/// run(F(), T()) with the activation and the type of the elements.
template <typename Run>
void with_types(Activation f, Dtype dtype, const Run& run) {
  with_type_of(dtype, [&](auto type) {
    switch (f) {
      case Activation::gelu:
        return run(Gelu(), type);
      case Activation::gelu_tanh:
        return run(GeluTanh(), type);
      case Activation::silu:
        return run(Silu(), type);
      case Activation::relu:
        return run(Relu(), type);
    }
  });
}

void activation_forward(Activation f, Elements x, MutElements y, std::int64_t n) {
  with_types(f, x.dtype, [&](auto kind, auto type) {
    using T = decltype(type);
    forward<decltype(kind)>(x.as<T>(), y.as<T>(), n);
  });
}

void activation_backward(Activation f, Elements x, Elements dy, MutElements dx, std::int64_t n) {
  with_types(f, x.dtype, [&](auto kind, auto type) {
    using T = decltype(type);
    backward<decltype(kind)>(x.as<T>(), dy.as<T>(), dx.as<T>(), n);
  });
}

void gated_forward(Activation f, Elements gate, Elements up, MutElements y, std::int64_t n) {
  with_types(f, gate.dtype, [&](auto kind, auto type) {
    using T = decltype(type);
    gated<decltype(kind)>(gate.as<T>(), up.as<T>(), y.as<T>(), n);
  });
}

void gated_backward(Activation f, Elements gate, Elements up, Elements dy, MutElements dgate,
                    MutElements dup, std::int64_t n) {
  with_types(f, gate.dtype, [&](auto kind, auto type) {
    using T = decltype(type);
    gated_back<decltype(kind)>(gate.as<T>(), up.as<T>(), dy.as<T>(), dgate.as<T>(), dup.as<T>(), n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(activation_forward);
HWY_EXPORT(activation_backward);
HWY_EXPORT(gated_forward);
HWY_EXPORT(gated_backward);
namespace fast {

void activation_forward(Activation f, Elements x, MutElements y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(activation_forward)(f, x, y, n);
}

void activation_backward(Activation f, Elements x, Elements dy, MutElements dx, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(activation_backward)(f, x, dy, dx, n);
}

void gated_forward(Activation f, Elements gate, Elements up, MutElements y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(gated_forward)(f, gate, up, y, n);
}

void gated_backward(Activation f, Elements gate, Elements up, Elements dy, MutElements dgate,
                    MutElements dup, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(gated_backward)(f, gate, up, dy, dgate, dup, n);
}

}  // namespace fast
}  // namespace llm
#endif
