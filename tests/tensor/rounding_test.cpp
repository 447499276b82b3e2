#include "tensor/ops/rounding.h"

#include <limits>

#include "tensor/ops/elementwise.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

/// What the bits mean, from the formats' definitions: sign, exponent, fraction.
double meaning(std::uint16_t bits, int n_fraction_bits, int bias) {
  const int exponent = (bits & 0x7fff) >> n_fraction_bits;
  const int fraction = bits & ((1 << n_fraction_bits) - 1);
  const int all_ones = (1 << (15 - n_fraction_bits)) - 1;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == all_ones) return fraction ? NAN : sign * INFINITY;
  const int implied = exponent > 0 ? 1 << n_fraction_bits : 0;
  const int power = std::max(exponent, 1) - bias - n_fraction_bits;
  return sign * std::ldexp(implied + fraction, power);
}
double meaning(Bf16 x) {
  return meaning(x.bits, 7, 127);
}
double meaning(F16 x) {
  return meaning(x.bits, 10, 15);
}

template <typename T>
constexpr int infinity_bits = 0x7f80;
template <>
constexpr int infinity_bits<F16> = 0x7c00;

/// Every f32 that decides a rounding to T: each number of T, the ones halfway between two, and the
/// neighbours of those; with the bits of T that are nearest, the even ones of two.
template <typename T>
void rounding_cases(std::vector<float>& from, std::vector<std::uint16_t>& to) {
  const auto put = [&](float x, int bits) {
    from.insert(from.end(), {x, -x});
    to.push_back(static_cast<std::uint16_t>(bits));
    to.push_back(static_cast<std::uint16_t>(bits | 0x8000));
  };
  for (int bits = 0; bits < infinity_bits<T>; ++bits) {
    const double here = meaning(T{static_cast<std::uint16_t>(bits)});
    const double next = bits + 1 < infinity_bits<T>
                            ? meaning(T{static_cast<std::uint16_t>(bits + 1)})
                            : 2 * here - meaning(T{static_cast<std::uint16_t>(bits - 1)});
    const auto half = static_cast<float>((here + next) / 2);
    put(static_cast<float>(here), bits);
    put(half, bits % 2 == 0 ? bits : bits + 1);
    put(std::nextafter(half, 0.0f), bits);
    put(std::nextafter(half, INFINITY), bits + 1);
  }
  put(INFINITY, infinity_bits<T>);
  put(std::numeric_limits<float>::max(), infinity_bits<T>);
}

template <typename T>
void check_widening() {
  Tensor low({65536}, DtypeOf<T>::value), wide({65536});
  for (int bits = 0; bits < 65536; ++bits) {
    const T x{static_cast<std::uint16_t>(bits)};
    low.view().as<T>()[bits] = x;
    const double expected = meaning(x);
    const bool is_same = std::isnan(expected) ? std::isnan(to_float(x)) : to_float(x) == expected;
    if (!is_same || std::signbit(to_float(x)) != (bits > 0x7fff)) FAIL("bits " << bits);
  }
  Queue queue;
  convert(queue, low, wide);
  queue.finish();
  CHECK(same_bits(wide, converted(low, Dtype::f32)));
}

template <typename T>
void check_rounding() {
  std::vector<float> from;
  std::vector<std::uint16_t> to;
  rounding_cases<T>(from, to);
  const auto n = static_cast<std::int64_t>(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (round_to<T>(from[i]).bits != to[i]) FAIL(from[i] << " to " << to[i]);
  }
  Queue queue;
  const Tensor y({n}, DtypeOf<T>::value);
  convert(queue, View(from.data(), {n}), y);
  queue.finish();
  CHECK(std::memcmp(y.view().data(), to.data(), to.size() * 2) == 0);
}

}  // namespace

TEST_CASE("every bf16 and every f16 widens to the f32 that its bits mean") {
  check_widening<Bf16>();
  check_widening<F16>();
}

TEST_CASE("f32 rounds to the nearest bf16 and f16, to the even one of two, subnormal or not") {
  check_rounding<Bf16>();
  check_rounding<F16>();
}

TEST_CASE("NaN stays NaN with its sign, whatever its payload") {
  for (const std::uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu}) {
    const auto x = std::bit_cast<float>(bits);
    const Tensor nan = tensor_of({1}, {x});
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      Queue queue;
      const Tensor y({1}, dtype);
      convert(queue, nan, y);
      queue.finish();
      CHECK(same_bits(y, converted(nan, dtype)));
      const Tensor back = converted(y, Dtype::f32);
      CHECK(std::isnan(back[0]));
      CHECK(std::signbit(back[0]) == std::signbit(x));
    }
  }
}

TEST_CASE("a conversion's bits do not depend on an element's place") {
  for (const std::int64_t n : odd_sizes) {
    const Tensor x = random_tensor({n}, 1, 3);
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      Queue queue;
      const Tensor y({n}, dtype);
      convert(queue, x, y);
      queue.finish();
      CHECK(same_bits(y, converted(x, dtype)));
    }
  }
}

TEST_CASE("fill and add round once in a low dtype") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    Queue queue;
    const Tensor y({37}, dtype), x = random_tensor({37}, 1), low_x = converted(x, dtype);
    fill(queue, 1.2345f, y);
    queue.finish();
    const Tensor start = converted(y, Dtype::f32);
    CHECK(start[36] == Approx(1.2345f).epsilon(0.004));
    const Tensor expected({37});
    for (std::int64_t i = 0; i < 37; ++i) expected[i] = start[i] + x[i];
    add(queue, x, y);
    queue.finish();
    CHECK(same_bits(y, converted(expected, dtype)));
  }
}
