#pragma once
#include "tensor/cuda/module.h"
#include "tests/support/cuda/device.h"

extern "C" const llm::cuda::Module* llm_cuda_module();

namespace llm::test {

/// A process with an emulated device and the module of CUDA, while it lives. What is on the device
/// ends before it.
class EmulatedModule {
 public:
  explicit EmulatedModule(std::uint64_t seed) : device_(seed) {
    emulator::current_device() = &device_;
    cuda::use_module(llm_cuda_module());
  }
  ~EmulatedModule() {
    cuda::module().runtime.close();
    cuda::use_module(nullptr);
    emulator::current_device() = nullptr;
  }
  EmulatedModule(const EmulatedModule&) = delete;
  EmulatedModule& operator=(const EmulatedModule&) = delete;
  emulator::Device& device() { return device_; }

 private:
  emulator::Device device_;
};

}  // namespace llm::test
