#pragma once
// What this project uses of CUDA's runtime, on the emulated device (tests/support/cuda/device.h):
// .cu files compile as C++ against it. What is not here is not used, or cannot be emulated.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/cuda/cuda_types.h"
#include "tests/support/cuda/device.h"
#include "tests/support/cuda/graph_calls.h"
#include "tests/support/cuda/handles.h"
#include "tests/support/cuda/kernel_language.h"

namespace llm::emulator {

/// What a kernel's argument lets it access. A struct of pointers says it by a specialisation.
template <typename T>
struct AccessesOf {
  static void add(const T&, std::vector<Access>&) {}
};
template <typename T>
struct AccessesOf<T*> {
  static void add(T* pointer, std::vector<Access>& all) {
    if (pointer != nullptr) all.push_back({pointer, !std::is_const_v<T>});
  }
};

}  // namespace llm::emulator

inline cudaError_t cudaGetDeviceCount(int* n) {
  const bool is_there = llm::emulator::current_device() != nullptr;
  if (is_there) *n = 1;  // without a driver it stays unwritten
  return is_there ? cudaSuccess : cudaErrorInsufficientDriver;
}
struct cudaDeviceProp {
  char name[256] = "emulated device";
  int major = 0;
  int minor = 0;
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = cudaDeviceProp();
  properties->major = llm::emulator::current_device()->capability / 10;
  properties->minor = llm::emulator::current_device()->capability % 10;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetPCIBusId(char* id, int n_bytes, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<std::size_t>(n_bytes));
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* n_bytes) {
  *n_bytes = llm::emulator::current_device()->limit_bytes;
  *free_bytes = *n_bytes - llm::emulator::current_device()->bytes_in_use();
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  return llm::emulator::current_device() != nullptr && device == 0 ? cudaSuccess
                                                                   : cudaErrorNoDevice;
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

/// A kernel's dynamic shared memory is 48 KiB at most until it is told more, and 227 KiB then.
inline std::map<const void*, std::size_t>& llm_shared_limits() {
  static std::map<const void*, std::size_t> limits;
  return limits;
}
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int value) {
  if (value < 0 || value > 227 << 10) return cudaErrorInvalidValue;
  llm_shared_limits()[reinterpret_cast<const void*>(kernel)] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const int capability = llm::emulator::current_device()->capability;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
  return cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto limit = llm_shared_limits().find(reinterpret_cast<const void*>(kernel));
  constexpr std::size_t granted_bytes = 48 << 10;
  if (config->dynamicSmemBytes >
      (limit == llm_shared_limits().end() ? granted_bytes : limit->second)) {
    return cudaErrorInvalidValue;
  }
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  std::vector<llm::emulator::Access> accesses;
  std::apply(
      [&](const auto&... value) {
        (llm::emulator::AccessesOf<std::decay_t<decltype(value)>>::add(value, accesses), ...);
      },
      values);
  llm::emulator::Launch launch;
  launch.grid = config->gridDim;
  launch.block = config->blockDim;
  launch.shared_bytes = config->dynamicSmemBytes;
  launch.kernel = [kernel, values = std::move(values)] { std::apply(kernel, values); };
  llm::emulator::current_device()->launch(llm::emulator::number_of(config->stream), "a kernel",
                                          std::move(launch), accesses);
  return cudaSuccess;
}

inline cudaError_t cudaMallocAsync(void** memory, std::size_t n_bytes, cudaStream_t stream) {
  *memory = llm::emulator::current_device()->allocate(n_bytes, llm::emulator::number_of(stream));
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  llm::emulator::current_device()->release(memory, llm::emulator::number_of(stream));
  return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** memory, std::size_t n_bytes, unsigned) {
  *memory = llm::emulator::current_device()->allocate_pinned(n_bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  llm::emulator::current_device()->release_pinned(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  llm::emulator::current_device()->copy(llm::emulator::number_of(stream), to, from, n_bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t n_bytes, cudaStream_t stream) {
  llm::emulator::current_device()->set(llm::emulator::number_of(stream), to, byte, n_bytes);
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const int number = llm::emulator::current_device()->create_stream();
  *stream = llm::emulator::handle_of<cudaStream_t>(number);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  llm::emulator::current_device()->destroy_stream(llm::emulator::number_of(stream));
  return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const bool done = llm::emulator::current_device()->query_stream(llm::emulator::number_of(stream));
  return done ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  llm::emulator::current_device()->synchronize_stream(llm::emulator::number_of(stream));
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
  llm::emulator::current_device()->wait(llm::emulator::number_of(stream),
                                        llm::emulator::number_of(event));
  return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const int number = llm::emulator::current_device()->create_event();
  *event = llm::emulator::handle_of<cudaEvent_t>(number);
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  llm::emulator::current_device()->destroy_event(llm::emulator::number_of(event));
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  llm::emulator::current_device()->record(llm::emulator::number_of(event),
                                          llm::emulator::number_of(stream));
  return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  const bool done = llm::emulator::current_device()->query(llm::emulator::number_of(event));
  return done ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  llm::emulator::Device& device = *llm::emulator::current_device();
  *ms = device.elapsed_ms(llm::emulator::number_of(begin), llm::emulator::number_of(end));
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  llm::emulator::current_device()->synchronize(llm::emulator::number_of(event));
  return cudaSuccess;
}
