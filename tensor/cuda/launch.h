#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"

/// How this project's kernels are launched, and what they share. Every sum has one order, which
/// follows from the op's shape alone; no kernel adds by atomics.
namespace llm::cuda {

inline constexpr unsigned block_threads = 256;
inline constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;
inline constexpr unsigned lanes = 32;

inline void check(cudaError_t error, const char* call) {
  CHECK_CONTRACT(error == cudaSuccess, std::string(call) + ": " + cudaGetErrorString(error));
}

/// Of the device that the calling thread has selected; 80 for 8.0.
inline int capability() {
  int device = 0;
  int major = 0;
  int minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

struct Grid {
  std::int64_t n_blocks = 1;
  unsigned n_threads = block_threads;  ///< of each block
  unsigned shared_bytes = 0;
};

template <typename... Parameters, typename... Arguments>
void launch(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.n_blocks == 0) return;
  CHECK_CONTRACT(grid.n_blocks <= 0x7FFFFFFF, "a grid has fewer than 2^31 blocks");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3{static_cast<unsigned>(grid.n_blocks)};
  config.blockDim = dim3{grid.n_threads};
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  constexpr unsigned granted_bytes = 48 << 10;  // what a kernel has without asking
  if (grid.shared_bytes > granted_bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "a launch");
}

/// Blocks for n elements, each thread's a stride of the grid apart.
inline Grid grid_of(std::int64_t n) {
  constexpr std::int64_t most_blocks = 4096;  // several on each multiprocessor of today's devices
  const std::int64_t n_blocks = (n + block_threads - 1) / block_threads;
  return {n_blocks < most_blocks ? n_blocks : most_blocks};
}

__device__ inline std::int64_t first_element() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t element_stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// The launch's shared memory, from a multiple of 16 bytes on.
template <typename T>
__device__ T* shared() {
#ifdef LLM_EMULATED_CUDA
  return reinterpret_cast<T*>(emulator::dynamic_shared());
#else
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return reinterpret_cast<T*>(shared_bytes);
#endif
}

/// The sum of a warp's x, on each of its lanes: lanes in halves.
template <typename T>
__device__ T warp_sum(T x) {
  for (unsigned half = lanes / 2; half > 0; half /= 2) x += __shfl_xor_sync(all_lanes, x, half);
  return x;
}

/// The sum of all threads' x, on each of them: lanes in halves, then warps in order. A block is
/// whole warps; `partials` has room for one T a warp and is free again after the call.
template <typename T>
__device__ T block_sum(T x, T* partials) {
  x = warp_sum(x);
  if (threadIdx.x % lanes == 0) partials[threadIdx.x / lanes] = x;
  __syncthreads();
  T sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / lanes; ++warp) sum += partials[warp];
  __syncthreads();
  return sum;
}

/// Room for block_sum of T.
template <typename T>
inline constexpr unsigned partials_bytes = block_threads / lanes * sizeof(T);

// Where rows are short, a warp takes one.
inline constexpr unsigned block_warps = block_threads / lanes;
inline Grid warps_grid(std::int64_t n_rows) {
  return grid_of(n_rows * lanes);
}
__device__ inline std::int64_t first_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * block_warps + threadIdx.x / lanes;
}
__device__ inline std::int64_t warp_stride() {
  return static_cast<std::int64_t>(gridDim.x) * block_warps;
}
__device__ inline unsigned lane_of_warp() {
  return threadIdx.x % lanes;
}

/// Memory from the stream's pool, for what is put into it from now on. Throws OutOfMemory.
inline void* allocate_in(cudaStream_t stream, std::size_t n_bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocAsync(&memory, n_bytes, stream);
  if (error == cudaErrorMemoryAllocation) throw OutOfMemory(static_cast<std::int64_t>(n_bytes));
  check(error, "cudaMallocAsync");
  return memory;
}

/// Device memory for the kernels that are put into the stream while this lives.
class Scratch {
 public:
  Scratch(std::size_t n_bytes, cudaStream_t stream)
      : stream_(stream), memory_(n_bytes > 0 ? allocate_in(stream, n_bytes) : nullptr) {}
  ~Scratch() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  cudaStream_t stream_;
  void* memory_;
};

}  // namespace llm::cuda
