#pragma once
#include <cstddef>
#include <cstdint>

namespace llm {

/// The bits of a bfloat16: the upper half of an f32.
struct Bf16 {
  std::uint16_t bits;
};
/// The bits of an IEEE 754 binary16.
struct F16 {
  std::uint16_t bits;
};

/// Element types of tensors, files and messages.
enum class Dtype : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8, u16 };

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::bf16:
    case Dtype::f16:
    case Dtype::u16:
      return 2;
    case Dtype::u8:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "f32";
    case Dtype::bf16:
      return "bf16";
    case Dtype::f16:
      return "f16";
    case Dtype::f64:
      return "f64";
    case Dtype::i32:
      return "i32";
    case Dtype::i64:
      return "i64";
    case Dtype::u8:
      return "u8";
    case Dtype::u16:
      return "u16";
  }
  return "?";
}

template <typename T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::f32;
};
template <>
struct DtypeOf<Bf16> {
  static constexpr Dtype value = Dtype::bf16;
};
template <>
struct DtypeOf<F16> {
  static constexpr Dtype value = Dtype::f16;
};
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::f64;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::i32;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::i64;
};
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr Dtype value = Dtype::u8;
};
template <>
struct DtypeOf<std::uint16_t> {
  static constexpr Dtype value = Dtype::u16;
};

}  // namespace llm
