#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "tensor/cuda/launch.h"
#include "tensor/dtype.h"
#include "tensor/ops/rounding.h"

/// Tensor-core products of one warp: m16n8k16, inputs bf16 or f16, sums f32, for sm_80 and newer.
/// What lane has which element is the PTX ISA's; tests run it on lanes that are fibers.
namespace llm::cuda {

// A loop over registers is unrolled: an array is in registers only where every index is a constant.
// A loop that is kept needs the registers of one iteration.
#ifdef __CUDACC__
#define LLM_UNROLL _Pragma("unroll")
#define LLM_KEEP_LOOP _Pragma("unroll 1")
#else
#define LLM_UNROLL
#define LLM_KEEP_LOOP
#endif

/// 16 x 16 of the left factor, 16 x 8 of the right one, and 16 x 8 of sums, of one warp.
struct LeftTile {
  std::uint32_t x[4];
};
struct RightTile {
  std::uint32_t x[2];
};
struct SumTile {
  float x[4] = {0, 0, 0, 0};
};

/// Element i of a lane's part of a SumTile.
__host__ __device__ constexpr int row_in_sums(int lane, int i) {
  return lane / 4 + 8 * (i / 2);
}
__host__ __device__ constexpr int column_in_sums(int lane, int i) {
  return lane % 4 * 2 + i % 2;
}

/// sums += left right
template <typename T>
__device__ inline void multiply(SumTile& sums, const LeftTile& left, const RightTile& right) {
  constexpr bool is_bf16 = std::is_same_v<T, Bf16>;
#ifdef LLM_EMULATED_CUDA
  emulator::multiply_tiles(sums.x, left.x, right.x, is_bf16);
#else
  float* const d = sums.x;
  if constexpr (is_bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(left.x[0]), "r"(left.x[1]), "r"(left.x[2]), "r"(left.x[3]), "r"(right.x[0]),
          "r"(right.x[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(left.x[0]), "r"(left.x[1]), "r"(left.x[2]), "r"(left.x[3]), "r"(right.x[0]),
          "r"(right.x[1]));
  }
#endif
}

/// Two elements in one register, `low` first in memory, each to nearest even.
template <typename T>
__device__ inline std::uint32_t pack(float low, float high) {
#ifdef LLM_EMULATED_CUDA
  return round_to<T>(low).bits | static_cast<std::uint32_t>(round_to<T>(high).bits) << 16;
#else
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#endif
}

/// The elements of a register.
template <typename T>
__device__ inline float low_of(std::uint32_t pair) {
  return to_float(T{static_cast<std::uint16_t>(pair)});
}
template <typename T>
__device__ inline float high_of(std::uint32_t pair) {
  return to_float(T{static_cast<std::uint16_t>(pair >> 16)});
}

/// Two neighbouring tiles of sums, 16 x 16, as a left factor: each lane has what it needs.
template <typename T>
__device__ inline LeftTile left_of(const SumTile& first, const SumTile& second) {
  return {{pack<T>(first.x[0], first.x[1]), pack<T>(first.x[2], first.x[3]),
           pack<T>(second.x[0], second.x[1]), pack<T>(second.x[2], second.x[3])}};
}

/// Four 8 x 8 matrices; lane i says where row i % 8 of matrix i / 8 begins.
template <bool is_transposed, typename T>
__device__ inline void load_matrices(std::uint32_t (&x)[4], const T* row) {
#ifdef LLM_EMULATED_CUDA
  emulator::load_matrices(x, row, is_transposed);
#else
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (is_transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

/// A matrix in shared memory, row-major; rows begin at multiples of 16 bytes. A pitch that is 16
/// bytes more than a multiple of 128 keeps eight rows in different banks.
template <typename T>
struct SharedTile {
  T* data;
  int pitch;
  __device__ T* at(int row, int column) const { return data + row * pitch + column; }
};

/// The 16 x 16 at (row, column).
template <typename T>
__device__ inline LeftTile left_at(const SharedTile<T>& tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x % lanes);
  LeftTile left;
  load_matrices<false>(left.x, tile.at(row + lane % 16, column + lane / 16 * 8));
  return left;
}

/// Where the tile's rows are k, from `row` on, and its columns the factor's rows.
template <typename T>
__device__ inline LeftTile left_of_columns(const SharedTile<T>& tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x % lanes);
  LeftTile left;
  load_matrices<true>(left.x, tile.at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  return left;
}

/// Two right factors, k = 16 deep and 8 columns each side by side.
struct RightPair {
  RightTile first;
  RightTile second;
};
__device__ inline RightPair pair_of(const std::uint32_t (&x)[4]) {
  return {{{x[0], x[1]}}, {{x[2], x[3]}}};
}

/// Where the tile's rows are the factor's columns: columns [row, row + 16), k from `column` on.
template <typename T>
__device__ inline RightPair right_of_rows(const SharedTile<T>& tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x % lanes);
  std::uint32_t x[4];
  load_matrices<false>(x, tile.at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  return pair_of(x);
}

/// Where the tile's rows are the factor's: k from `row` on, columns [column, column + 16).
template <typename T>
__device__ inline RightPair right_of_columns(const SharedTile<T>& tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x % lanes);
  std::uint32_t x[4];
  load_matrices<true>(x, tile.at(row + lane / 8 % 2 * 8 + lane % 8, column + lane / 16 * 8));
  return pair_of(x);
}

}  // namespace llm::cuda
