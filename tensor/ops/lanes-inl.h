// Sixteen f32 lanes on whatever registers the target has: one of 512 bits, two of 256 or four of
// 128. Every fast body is written in these, so a sum adds the same elements in the same order on
// each of them. Included once a target by Highway's foreach_target, hence the guard that toggles.
#if defined(LLM_TENSOR_OPS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLM_TENSOR_OPS_LANES_INL_H_
#undef LLM_TENSOR_OPS_LANES_INL_H_
#else
#define LLM_TENSOR_OPS_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

// The emulated target's operations are loops, thousands in a body that has them all: the compiler
// takes a minute for those. There it says itself what is worth it.
#undef LANES_INLINE
#if HWY_TARGET == HWY_EMU128
#define LANES_INLINE inline
#else
#define LANES_INLINE HWY_INLINE
#endif

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t n_lanes = 16;
using RegisterTag = hn::CappedTag<float, n_lanes>;
using Register = hn::Vec<RegisterTag>;
inline constexpr RegisterTag register_tag;
inline constexpr int register_lanes = static_cast<int>(hn::MaxLanes(RegisterTag()));
inline constexpr int n_registers = static_cast<int>(n_lanes) / register_lanes;

struct Lanes {
  Register part[n_registers];
};

LANES_INLINE Lanes broadcast(float value) {
  Lanes y;
  for (Register& part : y.part) part = hn::Set(register_tag, value);
  return y;
}

LANES_INLINE Lanes load(const float* x) {
  Lanes y;
  for (int p = 0; p < n_registers; ++p) y.part[p] = hn::LoadU(register_tag, x + p * register_lanes);
  return y;
}

LANES_INLINE void store(const Lanes& x, float* y) {
  for (int p = 0; p < n_registers; ++p) hn::StoreU(x.part[p], register_tag, y + p * register_lanes);
}

/// The first n of 16 elements; lanes from n on are 0 and memory behind them is not touched.
LANES_INLINE Lanes load(const float* x, std::int64_t n) {
  if (n >= n_lanes) return load(x);
  if constexpr (n_registers == 1) {
    const auto mask = hn::FirstN(register_tag, static_cast<std::size_t>(n));
    return {{hn::MaskedLoad(mask, register_tag, x)}};
  } else {
    alignas(64) float buffer[n_lanes] = {};
    std::memcpy(buffer, x, static_cast<std::size_t>(n) * sizeof(float));
    return load(buffer);
  }
}

LANES_INLINE void store(const Lanes& x, float* y, std::int64_t n) {
  if (n >= n_lanes) return store(x, y);
  if constexpr (n_registers == 1) {
    const auto mask = hn::FirstN(register_tag, static_cast<std::size_t>(n));
    hn::BlendedStore(x.part[0], mask, register_tag, y);
  } else {
    alignas(64) float buffer[n_lanes];
    store(x, buffer);
    std::memcpy(y, buffer, static_cast<std::size_t>(n) * sizeof(float));
  }
}

using WordTag = hn::RebindToUnsigned<RegisterTag>;
using Words = hn::Vec<WordTag>;
using HalfTag = hn::Rebind<std::uint16_t, RegisterTag>;
using Halves = hn::Vec<HalfTag>;

// Conversions as in tensor/ops/rounding.h. Neither the instructions for bf16, which flush subnormal
// numbers, nor F16C, which some targets lack: every target has the same bits.
LANES_INLINE Register widen(const Halves& x, Bf16 /*type*/) {
  return hn::BitCast(register_tag, hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), x)));
}
LANES_INLINE Register widen(const Halves& x, F16 /*type*/) {
  const WordTag d;
  const Words bits = hn::PromoteTo(d, x);
  const Words size = hn::And(bits, hn::Set(d, 0x7fff));
  // As an f32 whose exponent is 112 too small; the product is exact, also of subnormal numbers.
  const Register y =
      hn::Mul(hn::BitCast(register_tag, hn::ShiftLeft<13>(size)), hn::Set(register_tag, 0x1p112f));
  const Words infinite =
      hn::IfThenElseZero(hn::Gt(size, hn::Set(d, 0x7bff)), hn::Set(d, 0x7f800000));
  const Words sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000)));
  return hn::BitCast(register_tag, hn::Or(hn::BitCast(d, y), hn::Or(infinite, sign)));
}

LANES_INLINE Halves lower_halves(const Words& x) {
  const hn::RebindToSigned<WordTag> d;
  return hn::DemoteTo(HalfTag(), hn::BitCast(d, x));  // saturates: x is below 2^16
}
LANES_INLINE Halves upper_halves(const Words& x) {
  const hn::Repartition<std::uint16_t, WordTag> d;
  const auto halves = hn::BitCast(d, x);
  return hn::LowerHalf(HalfTag(), hn::ConcatOdd(d, halves, halves));
}
LANES_INLINE Halves narrow(const Register& x, Bf16 /*type*/) {
  const WordTag d;
  const Words bits = hn::BitCast(d, x);
  const Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const Words rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff)));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(x));
  return upper_halves(hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(d, 0x400000)), rounded));
}
LANES_INLINE Halves narrow(const Register& x, F16 /*type*/) {
  const WordTag d;
  const Words bits = hn::BitCast(d, x);
  const Words size = hn::And(bits, hn::Set(d, 0x7fffffff));
  const Words odd = hn::And(hn::ShiftRight<13>(size), hn::Set(d, 1));
  const Words normal = hn::ShiftRight<13>(
      hn::Add(hn::Sub(size, hn::Set(d, 112u << 23)), hn::Add(odd, hn::Set(d, 0xfff))));
  // Added to 0.5, whose last place is the least subnormal, a small number rounds as it should.
  const Register half = hn::Set(register_tag, 0.5f);
  const Words small =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(register_tag, size), half)), hn::BitCast(d, half));
  const Words nan =
      hn::Or(hn::Set(d, 0x7e00), hn::And(hn::ShiftRight<13>(size), hn::Set(d, 0x3ff)));
  Words y = hn::IfThenElse(hn::Lt(size, hn::Set(d, 0x38800000)), small, normal);
  y = hn::IfThenElse(hn::Lt(size, hn::Set(d, 0x47800000)), y, hn::Set(d, 0x7c00));
  y = hn::IfThenElse(hn::Gt(size, hn::Set(d, 0x7f800000)), nan, y);
  return lower_halves(hn::Or(y, hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000))));
}

/// Sixteen elements of bf16 or f16 as f32.
template <typename T>
LANES_INLINE Lanes load(const T* x) {
  Lanes y;
  for (int p = 0; p < n_registers; ++p) {
    const auto* bits = reinterpret_cast<const std::uint16_t*>(x + p * register_lanes);
    y.part[p] = widen(hn::LoadU(HalfTag(), bits), T());
  }
  return y;
}
/// Rounded to the nearest, ties to even.
template <typename T>
LANES_INLINE void store(const Lanes& x, T* y) {
  for (int p = 0; p < n_registers; ++p) {
    auto* bits = reinterpret_cast<std::uint16_t*>(y + p * register_lanes);
    hn::StoreU(narrow(x.part[p], T()), HalfTag(), bits);
  }
}
template <typename T>
LANES_INLINE Lanes load(const T* x, std::int64_t n) {
  if (n >= n_lanes) return load(x);
  if constexpr (n_registers == 1) {
    const auto mask = hn::FirstN(HalfTag(), static_cast<std::size_t>(n));
    const auto* bits = reinterpret_cast<const std::uint16_t*>(x);
    return {{widen(hn::MaskedLoad(mask, HalfTag(), bits), T())}};
  } else {
    T buffer[n_lanes] = {};
    std::memcpy(buffer, x, static_cast<std::size_t>(n) * sizeof(T));
    return load(buffer);
  }
}
template <typename T>
LANES_INLINE void store(const Lanes& x, T* y, std::int64_t n) {
  if (n >= n_lanes) return store(x, y);
  if constexpr (n_registers == 1) {
    const auto mask = hn::FirstN(HalfTag(), static_cast<std::size_t>(n));
    hn::BlendedStore(narrow(x.part[0], T()), mask, HalfTag(), reinterpret_cast<std::uint16_t*>(y));
  } else {
    T buffer[n_lanes];
    store(x, buffer);
    std::memcpy(y, buffer, static_cast<std::size_t>(n) * sizeof(T));
  }
}

LANES_INLINE Lanes operator+(Lanes a, const Lanes& b) {
  for (int p = 0; p < n_registers; ++p) a.part[p] = hn::Add(a.part[p], b.part[p]);
  return a;
}
LANES_INLINE Lanes operator-(Lanes a, const Lanes& b) {
  for (int p = 0; p < n_registers; ++p) a.part[p] = hn::Sub(a.part[p], b.part[p]);
  return a;
}
LANES_INLINE Lanes operator*(Lanes a, const Lanes& b) {
  for (int p = 0; p < n_registers; ++p) a.part[p] = hn::Mul(a.part[p], b.part[p]);
  return a;
}
LANES_INLINE Lanes operator/(Lanes a, const Lanes& b) {
  for (int p = 0; p < n_registers; ++p) a.part[p] = hn::Div(a.part[p], b.part[p]);
  return a;
}
/// a * b + c, rounded once where the target can (every one but the SSE2 baseline).
LANES_INLINE Lanes multiply_add(Lanes a, const Lanes& b, const Lanes& c) {
  for (int p = 0; p < n_registers; ++p) a.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return a;
}
LANES_INLINE Lanes square_root(Lanes a) {
  for (Register& part : a.part) part = hn::Sqrt(part);
  return a;
}
LANES_INLINE Lanes absolute(Lanes a) {
  for (Register& part : a.part) part = hn::Abs(part);
  return a;
}
LANES_INLINE Lanes maximum(Lanes a, const Lanes& b) {
  for (int p = 0; p < n_registers; ++p) a.part[p] = hn::Max(a.part[p], b.part[p]);
  return a;
}
/// Lanes of `yes` where test > 0, of `no` elsewhere (and where test is not a number).
LANES_INLINE Lanes select_positive(const Lanes& test, Lanes yes, const Lanes& no) {
  for (int p = 0; p < n_registers; ++p) {
    const auto mask = hn::Gt(test.part[p], hn::Zero(register_tag));
    yes.part[p] = hn::IfThenElse(mask, yes.part[p], no.part[p]);
  }
  return yes;
}
/// The first n lanes of x, and `other` in the rest.
LANES_INLINE Lanes first_lanes(std::int64_t n, Lanes x, float other) {
  for (int p = 0; p < n_registers; ++p) {
    const std::int64_t here = n - p * register_lanes;
    const auto count = static_cast<std::size_t>(here < 0 ? 0 : here);
    const auto mask = hn::FirstN(register_tag, count);
    x.part[p] = hn::IfThenElse(mask, x.part[p], hn::Set(register_tag, other));
  }
  return x;
}

/// Folds in halves: lane l takes in lane l + 8, then l + 4, l + 2, l + 1.
LANES_INLINE float sum_of_lanes(const Lanes& x) {
  alignas(64) float lane[n_lanes];
  store(x, lane);
  for (std::int64_t half = n_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}
LANES_INLINE float maximum_of_lanes(const Lanes& x) {
  alignas(64) float lane[n_lanes];
  store(x, lane);
  for (std::int64_t half = n_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) {
      lane[l] = lane[l] > lane[l + half] ? lane[l] : lane[l + half];
    }
  }
  return lane[0];
}

/// e^x with a relative error below 2e-7; 0 below -87.3 (no subnormals), 2^127.7 above 88.5, and not
/// a number where x is none. x = n ln 2 + r with |r| <= ln 2 / 2 and Taylor's polynomial for e^r.
LANES_INLINE Register exponential(Register x) {
  const RegisterTag d;
  const hn::RebindToSigned<RegisterTag> di;
  const auto too_small = hn::Lt(x, hn::Set(d, -87.3f));
  // Not hn::Min and hn::Max: which operand they return for a NaN differs between targets.
  const Register low = hn::Set(d, -87.3f);
  const Register high = hn::Set(d, 88.5f);
  x = hn::IfThenElse(too_small, low, x);
  x = hn::IfThenElse(hn::Gt(x, high), high, x);
  // Added to 1.5 2^23, whose last place is 1, a small number rounds to a whole one: that is then in
  // the lowest bits.
  const Register magnet = hn::Set(d, 0x1.8p23f);
  const Register sum = hn::Add(hn::Mul(x, hn::Set(d, 1.44269504f)), magnet);
  const Register n = hn::Sub(sum, magnet);
  // ln 2 in two parts; n times the first is exact.
  Register r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  Register y = hn::Set(d, 1.0f / 5040);
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 720));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 120));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 24));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 6));
  y = hn::MulAdd(y, r, hn::Set(d, 0.5f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::BitCast(di, sum), hn::Set(di, 127));
  y = hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
  return hn::IfThenZeroElse(too_small, y);
}

LANES_INLINE Lanes exponential(Lanes x) {
  for (Register& part : x.part) part = exponential(part);
  return x;
}

/// 1 / (1 + e^-x)
LANES_INLINE Lanes sigmoid(const Lanes& x) {
  const Lanes one = broadcast(1);
  return one / (one + exponential(broadcast(0) - x));
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#endif
