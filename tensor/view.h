#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "src/base/check.h"
#include "tensor/dtype.h"

namespace llm {

/// Where a tensor's bytes live and where its work runs.
enum class Device : std::uint8_t { cpu, cuda };

/// Up to four extents, outermost first; row-major and contiguous. An empty Shape is a scalar.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    CHECK_CONTRACT(extents.size() <= extents_.size(), "a tensor has at most four dimensions");
    for (const std::int64_t extent : extents) {
      CHECK_CONTRACT(extent >= 0, "an extent is not negative");
      extents_[static_cast<std::size_t>(n_dims_++)] = extent;
    }
  }
  int n_dims() const { return n_dims_; }
  std::int64_t operator[](int dim) const { return extents_[static_cast<std::size_t>(dim)]; }
  std::int64_t n_elements() const {
    std::int64_t n = 1;
    for (int dim = 0; dim < n_dims_; ++dim) n *= (*this)[dim];
    return n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, 4> extents_{};
  int n_dims_ = 0;
};

/// "(2, 3)", for messages.
std::string to_string(const Shape& shape);

/// Elements that are read and not owned. Copies of a view see the same bytes.
class View {
 public:
  View() = default;
  View(const void* data, Dtype dtype, Shape shape, Device device = Device::cpu)
      : data_(data), dtype_(dtype), device_(device), shape_(shape) {}
  template <typename T>
  View(const T* data, Shape shape) : View(data, DtypeOf<T>::value, shape) {}

  const void* data() const { return data_; }
  Dtype dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  std::int64_t n_elements() const { return shape_.n_elements(); }
  std::int64_t n_bytes() const { return n_elements() * static_cast<std::int64_t>(size_of(dtype_)); }
  bool empty() const { return data_ == nullptr; }
  /// The elements as T. T must be the view's dtype.
  template <typename T>
  const T* as() const {
    CHECK_CONTRACT(dtype_ == DtypeOf<T>::value, "a view is read as what it holds");
    return static_cast<const T*>(data_);
  }

 private:
  const void* data_ = nullptr;
  Dtype dtype_ = Dtype::f32;
  Device device_ = Device::cpu;
  Shape shape_;
};

/// Elements that are written (and may be read) and not owned.
class MutView {
 public:
  MutView() = default;
  MutView(void* data, Dtype dtype, Shape shape, Device device = Device::cpu)
      : data_(data), dtype_(dtype), device_(device), shape_(shape) {}
  template <typename T>
  MutView(T* data, Shape shape) : MutView(data, DtypeOf<T>::value, shape) {}

  operator View() const {
    return View(data_, dtype_, shape_, device_);
  }  // NOLINT: as T* to const T*
  void* data() const { return data_; }
  Dtype dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  std::int64_t n_elements() const { return shape_.n_elements(); }
  std::int64_t n_bytes() const { return n_elements() * static_cast<std::int64_t>(size_of(dtype_)); }
  bool empty() const { return data_ == nullptr; }
  template <typename T>
  T* as() const {
    CHECK_CONTRACT(dtype_ == DtypeOf<T>::value, "a view is read as what it holds");
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  Dtype dtype_ = Dtype::f32;
  Device device_ = Device::cpu;
  Shape shape_;
};

/// Elements [begin, begin + shape.n_elements()) of `whole`, seen under another shape.
View part(const View& whole, std::int64_t begin, Shape shape);
MutView part(const MutView& whole, std::int64_t begin, Shape shape);

}  // namespace llm
