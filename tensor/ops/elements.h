#pragma once
#include <cstddef>
#include <cstdint>

#include "src/base/check.h"
#include "tensor/view.h"

namespace llm {

/// Where elements of f32, bf16 or f16 begin: what a kernel's body reads. Like View without a shape.
struct Elements {
  Elements() = default;
  Elements(const void* at, Dtype kind) : data(at), dtype(kind) {}
  template <typename T>
  Elements(const T* at) : Elements(at, DtypeOf<T>::value) {}
  Elements(const View& view) : Elements(view.data(), view.dtype()) {}
  Elements operator+(std::int64_t n) const {
    if (!data) return *this;
    return {static_cast<const char*>(data) + n * static_cast<std::int64_t>(size_of(dtype)), dtype};
  }
  explicit operator bool() const { return data != nullptr; }
  /// T must be what the elements are.
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  const void* data = nullptr;
  Dtype dtype = Dtype::f32;
};

/// Elements that are written, and may be read.
struct MutElements {
  MutElements() = default;
  MutElements(void* at, Dtype kind) : data(at), dtype(kind) {}
  template <typename T>
  MutElements(T* at) : MutElements(at, DtypeOf<T>::value) {}
  MutElements(const MutView& view) : MutElements(view.data(), view.dtype()) {}
  MutElements operator+(std::int64_t n) const {
    if (!data) return *this;
    return {static_cast<char*>(data) + n * static_cast<std::int64_t>(size_of(dtype)), dtype};
  }
  operator Elements() const { return {data, dtype}; }
  explicit operator bool() const { return data != nullptr; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
};

/// run(T()) with the type of a floating dtype.
template <typename Run>
void with_type_of(Dtype dtype, const Run& run) {
  switch (dtype) {
    case Dtype::f32:
      return run(float());
    case Dtype::bf16:
      return run(Bf16());
    case Dtype::f16:
      return run(F16());
    default:
      CHECK_CONTRACT(false, "an op computes in f32, bf16 or f16");
  }
}

}  // namespace llm
