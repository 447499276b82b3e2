#pragma once
#include <bit>
#include <cstdint>

#include "src/base/host_device.h"
#include "tensor/dtype.h"

/// Conversions of one element, in integers, so that no mode of the CPU changes a bit: to nearest
/// even, subnormal numbers kept, too large for f16 is infinite, NaN stays NaN (and becomes quiet
/// when rounded). The definition of what `convert` and the fast bodies do.
namespace llm {

LLM_HOST_DEVICE inline float to_float(float x) {
  return x;
}
LLM_HOST_DEVICE inline float to_float(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
LLM_HOST_DEVICE inline float to_float(F16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  const std::uint32_t exponent = x.bits >> 10 & 0x1f;
  std::uint32_t fraction = x.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  if (fraction == 0) return std::bit_cast<float>(sign);
  std::uint32_t shift = 0;  // a subnormal f16 is a normal f32
  while ((fraction & 0x400) == 0) {
    fraction <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | (113 - shift) << 23 | (fraction & 0x3ff) << 13);
}

/// x / 2^n to nearest even.
LLM_HOST_DEVICE inline std::uint32_t rounded_shift(std::uint32_t x, std::uint32_t n) {
  const std::uint32_t half = std::uint32_t{1} << (n - 1);
  return (x + (half - 1) + (x >> n & 1)) >> n;
}

template <typename T>
LLM_HOST_DEVICE T round_to(float x);
template <>
LLM_HOST_DEVICE inline float round_to<float>(float x) {
  return x;
}
template <>
LLM_HOST_DEVICE inline Bf16 round_to<Bf16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40 : rounded_shift(bits, 16))};
}
/// The sign's bit and the others.
LLM_HOST_DEVICE inline F16 f16_of(std::uint32_t sign, std::uint32_t rest) {
  return {static_cast<std::uint16_t>(sign | rest)};
}
template <>
LLM_HOST_DEVICE inline F16 round_to<F16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return f16_of(sign, 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x47800000) return f16_of(sign, 0x7c00);  // 65,536 and more
  if (size >= 0x38800000) {
    return f16_of(sign, rounded_shift(size - (std::uint32_t{112} << 23), 13));
  }
  const std::uint32_t exponent = size >> 23;
  if (exponent < 102) return f16_of(sign, 0);  // below half of the least subnormal, 2^-25
  return f16_of(sign, rounded_shift((size & 0x7fffff) | 0x800000, 126 - exponent));
}

}  // namespace llm
