#pragma once
#include <cstdint>
#include <initializer_list>

#include "tensor/cuda/attention_call.h"
#include "tensor/cuda/attention_mma.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/mma.h"

/// Attention in tiles (Dao 2023, "FlashAttention-2"): a block has 64 queries or 64 keys of one
/// head, a warp 16 of them, and goes over the other tiles in order; tiles above the diagonal are
/// skipped. Scores and their gradients exist in registers, 16 rows of them at a time. Exponents are
/// of 2.
namespace llm::cuda {

inline constexpr int tile_rows = 64;
inline constexpr int warp_rows = 16;
inline constexpr unsigned tile_threads = tile_rows / warp_rows * lanes;
inline constexpr unsigned least_blocks = 2;  // on a multiprocessor: up to 255 registers a thread
inline constexpr float log2_e = 1.44269504f;

/// What is moved at once, whatever the elements are.
struct __attribute__((may_alias, aligned(16))) Words {
  std::uint32_t x[4];
};
struct __attribute__((may_alias)) Word {
  std::uint32_t x;
};

template <int D, typename T>
__device__ SharedTile<T> shared_tile(int index) {
  constexpr int pitch = D + 8;
  return {shared<T>() + index * tile_rows * pitch, pitch};
}
template <int D>
constexpr unsigned tiles_bytes(unsigned n_tiles) {
  return n_tiles * tile_rows * (D + 8) * sizeof(std::uint16_t);
}

/// A head's rows in global memory: where position 0's begins, and from one to the next.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;
  __device__ T* at(int position) const { return data + position * stride; }
};

template <typename T>
__device__ Rows<T> rows_of_qkv(const AttentionCall& call, T* qkv, std::int64_t sample, int part,
                               std::int64_t head) {
  return {qkv + call.in_qkv(call.token(sample, 0), part, head), call.shape.qkv_width()};
}
template <typename T>
__device__ Rows<T> rows_of_out(const AttentionCall& call, T* out, std::int64_t sample,
                               std::int64_t head) {
  return {out + call.in_out(call.token(sample, 0), head), call.shape.n_heads * call.shape.head_dim};
}

/// 64 positions from `first` on; zeros from seq_len on.
template <int D, typename T>
__device__ void load_rows(const Rows<const T>& from, int first, int seq_len,
                          const SharedTile<T>& to) {
  constexpr int words = 16 / sizeof(T);
  constexpr int n = tile_rows * D / words / static_cast<int>(tile_threads);
  constexpr int words_of_row = D / words;
  constexpr int rows_at_once = tile_threads / words_of_row;
  const int row = static_cast<int>(threadIdx.x) / words_of_row;
  const int column = static_cast<int>(threadIdx.x) % words_of_row * words;
  Words x[n];  // all are on their way before the first is waited for
  LLM_UNROLL
  for (int i = 0; i < n; ++i) {
    const int position = first + row + i * rows_at_once;
    x[i] = Words{};
    if (position < seq_len) x[i] = *reinterpret_cast<const Words*>(from.at(position) + column);
  }
  LLM_UNROLL
  for (int i = 0; i < n; ++i) {
    *reinterpret_cast<Words*>(to.at(row + i * rows_at_once, column)) = x[i];
  }
}

/// What a thread is in its block.
struct Thread {
  __device__ Thread()
      : lane(static_cast<int>(threadIdx.x % lanes)),
        row(static_cast<int>(threadIdx.x / lanes) * warp_rows) {}
  int lane;
  int row;  ///< its warp's first, in the block's tile
  /// Of element i of a tile of sums in the warp's rows.
  __device__ int row_of(int i) const { return row + row_in_sums(lane, i); }
  __device__ int column_of(int tile, int i) const { return 8 * tile + column_in_sums(lane, i); }
};

/// The warp's 16 rows, each times a factor, to positions from `first` on.
template <int D, typename T>
__device__ void store_rows(const SumTile (&sums)[D / 8], const float (&factors)[2], int first,
                           int seq_len, const Rows<T>& to) {
  const Thread thread;
  LLM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int position = first + thread.row_of(2 * half);
    if (position >= seq_len) continue;
    LLM_UNROLL
    for (int j = 0; j < D / 8; ++j) {
      const float* const x = sums[j].x + 2 * half;
      const Word pair{pack<T>(x[0] * factors[half], x[1] * factors[half])};
      *reinterpret_cast<Word*>(to.at(position) + thread.column_of(j, 0)) = pair;
    }
  }
}

/// sums (16 x 8 n) += the warp's rows of `left` times rows [first, first + 8 n) of `right`.
template <int D, int n, typename T>
__device__ void add_dots(SumTile (&sums)[n], const SharedTile<T>& left, const SharedTile<T>& right,
                         int first) {
  const Thread thread;
  LLM_UNROLL
  for (int k = 0; k < D; k += 16) {
    const LeftTile rows = left_at(left, thread.row, k);
    LLM_UNROLL
    for (int j = 0; j < n; j += 2) {
      const RightPair columns = right_of_rows(right, first + 8 * j, k);
      multiply<T>(sums[j], rows, columns.first);
      multiply<T>(sums[j + 1], rows, columns.second);
    }
  }
}

/// sums (16 x D) += weights (16 x 8 n), rounded to T, times rows [first, first + 8 n) of `right`.
template <int D, int n, typename T>
__device__ void add_weighted(SumTile (&sums)[D / 8], const SumTile (&weights)[n],
                             const SharedTile<T>& right, int first) {
  LLM_UNROLL
  for (int k = 0; k < n; k += 2) {
    const LeftTile rows = left_of<T>(weights[k], weights[k + 1]);
    LLM_UNROLL
    for (int j = 0; j < D / 8; j += 2) {
      const RightPair columns = right_of_columns(right, first + 8 * k, 8 * j);
      multiply<T>(sums[j], rows, columns.first);
      multiply<T>(sums[j + 1], rows, columns.second);
    }
  }
}

/// What a block has: a tile of positions of a head.
struct TilePlace {
  std::int64_t sample;
  std::int64_t head;
  int tile;
  int first;  ///< position of the tile
};
__host__ __device__ inline int n_tiles_of(const AttentionShape& shape) {
  return (static_cast<int>(shape.seq_len) + tile_rows - 1) / tile_rows;
}
/// Blocks with the most work come first.
__device__ inline TilePlace tile_of_block(const AttentionShape& shape, std::int64_t n_heads,
                                          bool is_of_queries) {
  const std::int64_t n_pairs = shape.batch * n_heads;
  const std::int64_t pair = blockIdx.x % n_pairs;
  const int index = static_cast<int>(blockIdx.x / n_pairs);
  const int tile = is_of_queries ? n_tiles_of(shape) - 1 - index : index;
  return {pair / n_heads, pair % n_heads, tile, tile * tile_rows};
}

inline Grid tiles_grid(const AttentionShape& shape, std::int64_t n_heads, unsigned shared_bytes) {
  return {n_tiles_of(shape) * shape.batch * n_heads, tile_threads, shared_bytes};
}

/// run(Kernels<T, D, drops>()) with those of a call.
template <template <typename, int, bool> typename Kernels, typename T, int D, typename Run>
void with_kernels(const AttentionCall& call, const Run& run) {
  if (call.dropout.p == 0) {
    run(Kernels<T, D, false>());
  } else {
    run(Kernels<T, D, true>());
  }
}
template <template <typename, int, bool> typename Kernels, typename Run>
void with_kernels(const AttentionCall& call, Dtype dtype, const Run& run) {
  const bool is_wide = call.shape.head_dim == 128;
  if (dtype == Dtype::bf16) {
    is_wide ? with_kernels<Kernels, Bf16, 128>(call, run)
            : with_kernels<Kernels, Bf16, 64>(call, run);
  } else {
    is_wide ? with_kernels<Kernels, F16, 128>(call, run)
            : with_kernels<Kernels, F16, 64>(call, run);
  }
}

inline void check_views(const AttentionShape& shape, std::initializer_list<View> views) {
  CHECK_CONTRACT(has_attention_mma(80, views.begin()->dtype(), shape.head_dim),
                 "tensor cores have attention of bf16 and f16, of heads 64 or 128 wide");
  for (const View& view : views) {
    CHECK_CONTRACT(reinterpret_cast<std::uintptr_t>(view.data()) % sizeof(Words) == 0,
                   "a tensor of attention begins at a multiple of 16 bytes");
  }
}

}  // namespace llm::cuda
