#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "src/base/philox.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/rounding.h"
#include "tensor/queue.h"
#include "tensor/storage.h"
#include "tensor/view.h"

namespace llm::test {

/// A tensor that owns its elements.
class Tensor {
 public:
  explicit Tensor(Shape shape, Dtype dtype = Dtype::f32)
      : storage_(shape.n_elements() * static_cast<std::int64_t>(size_of(dtype))),
        view_(storage_.view(dtype, shape)) {}
  const MutView& view() const { return view_; }
  operator View() const { return view_; }
  operator MutView() const { return view_; }
  float* data() const { return view_.as<float>(); }
  std::int64_t size() const { return view_.n_elements(); }
  float& operator[](std::int64_t i) const { return data()[i]; }

 private:
  Storage storage_;
  MutView view_;
};

/// Uniform numbers in [-scale, scale), the same in every run.
inline Tensor random_tensor(Shape shape, std::uint64_t seed, float scale = 1) {
  Tensor x(shape);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::uint32_t bits = philox_at(seed, static_cast<std::uint64_t>(i))[0];
    x[i] = scale * (2 * uniform_from(bits) - 1);
  }
  return x;
}

inline Tensor tensor_of(Shape shape, const std::vector<float>& values) {
  Tensor x(shape);
  for (std::int64_t i = 0; i < x.size(); ++i) x[i] = values.at(static_cast<std::size_t>(i));
  return x;
}

inline Tensor ids_of(const std::vector<std::int32_t>& values) {
  Tensor x({static_cast<std::int64_t>(values.size())}, Dtype::i32);
  std::memcpy(x.view().data(), values.data(), values.size() * sizeof(std::int32_t));
  return x;
}

using Doubles = std::vector<double>;

inline Doubles doubles(const View& x) {
  const float* begin = x.as<float>();
  return Doubles(begin, begin + x.n_elements());
}

/// Central differences of `loss` at x, one element at a time.
inline Doubles numeric_gradient(Doubles x, const std::function<double(const Doubles&)>& loss) {
  constexpr double step = 1e-5;
  Doubles gradient;
  for (double& x_i : x) {
    const double at = x_i;
    x_i = at + step;
    const double above = loss(x);
    x_i = at - step;
    gradient.push_back((above - loss(x)) / (2 * step));
    x_i = at;
  }
  return gradient;
}

/// sum of a[i] * b[i]: turns an op's output into a loss whose gradient at the output is `b`.
inline double inner(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Every element within `tolerance` of the largest expected magnitude (1 at least).
inline void check_close(const View& actual, const Doubles& expected, double tolerance) {
  REQUIRE(actual.n_elements() == static_cast<std::int64_t>(expected.size()));
  double largest = 1;
  for (const double e : expected) largest = std::max(largest, std::abs(e));
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(double{actual.as<float>()[i]} - expected[i]);
    worst = difference <= worst ? worst : difference;  // a NaN becomes the worst
  }
  CHECK(worst <= tolerance * largest);
}

inline void check_close(const View& actual, const View& expected, double tolerance) {
  check_close(actual, doubles(expected), tolerance);
}

inline bool same_bits(const void* a, const void* b, std::int64_t n_floats) {
  return n_floats == 0 || std::memcmp(a, b, static_cast<std::size_t>(n_floats) * 4) == 0;
}
inline bool same_bits(const View& a, const View& b) {
  if (a.n_bytes() != b.n_bytes()) return false;
  return a.n_bytes() == 0 ||
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.n_bytes())) == 0;
}

/// x rounded to, or widened from, another dtype by the definition.
inline Tensor converted(const View& x, Dtype dtype) {
  Tensor y(x.shape(), dtype);
  with_type_of(x.dtype(), [&](auto from) {
    with_type_of(dtype, [&](auto to) {
      for (std::int64_t i = 0; i < x.n_elements(); ++i) {
        y.view().as<decltype(to)>()[i] =
            round_to<decltype(to)>(to_float(x.as<decltype(from)>()[i]));
      }
    });
  });
  return y;
}

/// The kernel of the process for as long as this lives.
class UseProductKernel {
 public:
  explicit UseProductKernel(ProductKernel kernel) : before_(product_kernel()) {
    set_product_kernel(kernel);
  }
  ~UseProductKernel() { set_product_kernel(before_); }
  UseProductKernel(const UseProductKernel&) = delete;
  UseProductKernel& operator=(const UseProductKernel&) = delete;

 private:
  ProductKernel before_;
};

/// Sizes around the widths of registers and unrolled loops.
inline const std::vector<std::int64_t> odd_sizes = {0,  1,  2,  3,  7,  8,   15,  16,  17,
                                                    31, 33, 63, 64, 65, 100, 257, 1030};

}  // namespace llm::test
