#pragma once
// The language of kernels, as C++: built-in variables, shared memory and meetings.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/support/cuda/block.h"
#include "tests/support/cuda/tensor_cores.h"

#define LLM_EMULATED_CUDA 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("llm_shared")))

using dim3 = llm::emulator::Dim3;
using uint3 = llm::emulator::Index3;
inline const llm::emulator::Index3& threadIdx = llm::emulator::here.thread;
inline const llm::emulator::Index3& blockIdx = llm::emulator::here.block;
inline const llm::emulator::Dim3& blockDim = llm::emulator::here.block_size;
inline const llm::emulator::Dim3& gridDim = llm::emulator::here.grid_size;
inline constexpr int warpSize = 32;

#define LLM_EMULATOR_TEXT(x) #x
#define LLM_EMULATOR_LINE(x) LLM_EMULATOR_TEXT(x)
#define LLM_EMULATOR_AT(what) what " in line " LLM_EMULATOR_LINE(__LINE__)
#define __syncthreads() llm::emulator::meet_block(LLM_EMULATOR_AT("__syncthreads"))
#define __syncwarp(...) \
  llm::emulator::meet_warp(LLM_EMULATOR_AT("__syncwarp"), llm::emulator::mask_of(__VA_ARGS__))
#define __shfl_sync(mask, value, from) \
  llm::emulator::shuffle(LLM_EMULATOR_AT("__shfl_sync"), mask, value, static_cast<unsigned>(from))
#define __shfl_down_sync(mask, value, delta)                               \
  llm::emulator::shuffle(LLM_EMULATOR_AT("__shfl_down_sync"), mask, value, \
                         llm::emulator::lane() + static_cast<unsigned>(delta))
#define __shfl_up_sync(mask, value, delta)                               \
  llm::emulator::shuffle(LLM_EMULATOR_AT("__shfl_up_sync"), mask, value, \
                         llm::emulator::lane() - static_cast<unsigned>(delta))
#define __shfl_xor_sync(mask, value, bits)                                \
  llm::emulator::shuffle(LLM_EMULATOR_AT("__shfl_xor_sync"), mask, value, \
                         llm::emulator::lane() ^ static_cast<unsigned>(bits))
#define __ballot_sync(mask, predicate) \
  llm::emulator::vote(LLM_EMULATOR_AT("__ballot_sync"), mask, (predicate) != 0)
#define __any_sync(mask, predicate) \
  (llm::emulator::vote(LLM_EMULATOR_AT("__any_sync"), mask, (predicate) != 0) != 0)

namespace llm::emulator {

inline std::uint32_t mask_of(std::uint32_t mask = 0xFFFFFFFFu) {
  return mask;
}

template <typename T>
T shuffle(const char* what, std::uint32_t mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(what, mask, bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace llm::emulator
