#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/philox.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"
#include "tensor/storage.h"
#include "tests/support/cuda/device.h"

namespace llm::test {

/// An emulated device with a stream.
class DeviceRig {
 public:
  explicit DeviceRig(std::uint64_t seed) : device_(seed) {
    emulator::current_device() = &device_;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ~DeviceRig() { emulator::current_device() = nullptr; }
  DeviceRig(const DeviceRig&) = delete;
  DeviceRig& operator=(const DeviceRig&) = delete;

  /// The same elements on the device.
  MutView upload(const View& x) {
    if (x.empty()) return {};
    const auto n_bytes = static_cast<std::size_t>(x.n_bytes());
    void* there = nullptr;
    cudaMallocAsync(&there, n_bytes, stream);
    void* const pinned = pinned_bytes(n_bytes);
    std::memcpy(pinned, x.data(), n_bytes);
    cudaMemcpyAsync(there, pinned, n_bytes, cudaMemcpyHostToDevice, stream);
    return {there, x.dtype(), x.shape(), Device::cuda};
  }
  /// The device's elements, once the stream has come so far.
  void download(const View& x, const MutView& y) {
    const auto n_bytes = static_cast<std::size_t>(x.n_bytes());
    void* const pinned = pinned_bytes(n_bytes);
    cudaMemcpyAsync(pinned, x.data(), n_bytes, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    std::memcpy(y.data(), pinned, n_bytes);
  }

  cudaStream_t stream = nullptr;

 private:
  void* pinned_bytes(std::size_t n_bytes) {
    void* pinned = nullptr;
    cudaHostAlloc(&pinned, n_bytes, cudaHostAllocDefault);
    return pinned;
  }
  emulator::Device device_;
};

/// Owned elements on the CPU: numbers in [-2, 2) by (seed, index), rounded to the dtype; integers
/// are 0.
struct Values {
  Values(std::uint64_t seed, Dtype dtype, Shape shape)
      : storage(shape.n_elements() * static_cast<std::int64_t>(size_of(dtype))),
        view(storage.view(dtype, shape)) {
    std::memset(view.data(), 0, static_cast<std::size_t>(view.n_bytes()));
    if (dtype == Dtype::i32 || dtype == Dtype::f64) return;
    with_type_of(dtype, [&](auto type) {
      using T = decltype(type);
      for (std::int64_t i = 0; i < shape.n_elements(); ++i) {
        const float unit = uniform_from(philox_at(seed, static_cast<std::uint64_t>(i))[0]);
        view.as<T>()[i] = round_to<T>(4 * unit - 2);
      }
    });
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  operator View() const { return view; }
  operator MutView() const { return view; }
  /// Integers of up to 24 bits are exact.
  float operator[](std::int64_t i) const {
    if (view.dtype() == Dtype::i32) return static_cast<float>(view.as<std::int32_t>()[i]);
    float x = 0;
    with_type_of(view.dtype(), [&](auto type) { x = to_float(view.as<decltype(type)>()[i]); });
    return x;
  }
  Storage storage;
  MutView view;
};

}  // namespace llm::test
