#include "tensor/cuda/grouped_mma.h"

#include <initializer_list>

#include "tensor/cuda/grouped_tiles.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/mma.h"
#include "tensor/cuda/pack.h"
#include "tensor/ops/rounding.h"

// A block has a tile of one expert's product, and each of its 2 x 4 warps 64 x 32 of it. While
// tensor cores work on some terms in shared memory, the next ones come from global memory.
namespace llm::cuda {
namespace {

constexpr int tile = 128;  // of rows and columns
constexpr int depth = 32;  // terms at a time
constexpr int warp_rows = 64;
constexpr int warp_columns = 32;
constexpr int n_left = warp_rows / 16;
constexpr int n_right = warp_columns / 8;
constexpr int words = 8;  // elements of 16 bytes
static_assert(tile / warp_rows * (tile / warp_columns) == block_warps);

/// A matrix as it lies.
template <typename T>
struct Matrix {
  const T* data;
  std::int64_t n_rows;
  std::int64_t width;  ///< a multiple of 8
};

/// A tile's worth of a factor on its way to shared memory. `by_terms`: the matrix's rows are terms,
/// and its columns the tile's; otherwise its rows are the tile's.
template <typename T, bool by_terms, bool is_whole>
struct Staged {
  static constexpr int rows = by_terms ? depth : tile;
  static constexpr int columns = by_terms ? tile : depth;
  static constexpr int pitch = columns + words;  // keeps eight rows in different banks
  static constexpr int elements = rows * pitch;
  static constexpr int n = rows * columns / words / static_cast<int>(block_threads);
  Pack<T, words> packs[n];

  __device__ static int row(int i) { return index(i) / (columns / words); }
  __device__ static int column(int i) { return index(i) % (columns / words) * words; }
  __device__ static int index(int i) {
    return i * static_cast<int>(block_threads) + static_cast<int>(threadIdx.x);
  }
  /// From row or column `first` of the tile, and term `term` on; zeros where the matrix ends.
  __device__ void fetch(const Matrix<T>& x, std::int64_t first, std::int64_t term) {
    LLM_UNROLL
    for (int i = 0; i < n; ++i) {
      const std::int64_t r = (by_terms ? term : first) + row(i);
      const std::int64_t c = (by_terms ? first : term) + column(i);
      packs[i] = {};
      if (r < x.n_rows && c < x.width) {
        packs[i] = load<words, is_whole>(x.data + r * x.width + c, words);
      }
    }
  }
  __device__ void put(T* to) const {
    LLM_UNROLL
    for (int i = 0; i < n; ++i) store<true>(packs[i], to + row(i) * pitch + column(i), words);
  }
  __device__ static SharedTile<T> at(T* data) { return {data, pitch}; }
};

template <typename T, bool a_by_terms, bool b_by_terms, bool is_whole>
struct Product {
  using Left = Staged<T, a_by_terms, is_whole>;
  using Right = Staged<T, b_by_terms, is_whole>;
  static constexpr int buffer = Left::elements + Right::elements;
  static constexpr unsigned shared_bytes = 2 * buffer * sizeof(T);

  __device__ static int first_row() {
    return static_cast<int>(threadIdx.x / lanes) / (tile / warp_columns) * warp_rows;
  }
  __device__ static int first_column() {
    return static_cast<int>(threadIdx.x / lanes) % (tile / warp_columns) * warp_columns;
  }
  __device__ static LeftTile left_at_term(const SharedTile<T>& a, int row, int k) {
    if constexpr (a_by_terms) {
      return left_of_columns(a, k, row);
    } else {
      return left_at(a, row, k);
    }
  }
  __device__ static RightPair right_at_term(const SharedTile<T>& b, int column, int k) {
    if constexpr (b_by_terms) {
      return right_of_columns(b, k, column);
    } else {
      return right_of_rows(b, column, k);
    }
  }

  __device__ static void add_terms(SumTile (&sums)[n_left][n_right], const SharedTile<T>& a,
                                   const SharedTile<T>& b) {
    LLM_UNROLL
    for (int k = 0; k < depth; k += 16) {
      LeftTile left[n_left];
      LLM_UNROLL
      for (int i = 0; i < n_left; ++i) left[i] = left_at_term(a, first_row() + 16 * i, k);
      LLM_UNROLL
      for (int j = 0; j < n_right; j += 2) {
        const RightPair right = right_at_term(b, first_column() + 8 * j, k);
        LLM_UNROLL
        for (int i = 0; i < n_left; ++i) {
          multiply<T>(sums[i][j], left[i], right.first);
          multiply<T>(sums[i][j + 1], left[i], right.second);
        }
      }
    }
  }

  /// finish(i, j, sums of (i, j) and (i, j + 1)) of the tile's elements from (first_a, first_b) on,
  /// in whatever rows and columns.
  template <typename Finish>
  __device__ static void run(const Matrix<T>& a, std::int64_t first_a, const Matrix<T>& b,
                             std::int64_t first_b, std::int64_t n_terms, const Finish& finish) {
    SumTile sums[n_left][n_right];
    Left left;
    Right right;
    left.fetch(a, first_a, 0);
    right.fetch(b, first_b, 0);
    int step = 0;
    LLM_KEEP_LOOP
    for (std::int64_t term = 0; term < n_terms; term += depth) {
      // Who writes a buffer has met all who read it, in the step between.
      T* const at = shared<T>() + step * buffer;
      step = 1 - step;
      left.put(at);
      right.put(at + Left::elements);
      __syncthreads();
      if (term + depth < n_terms) {
        left.fetch(a, first_a, term + depth);
        right.fetch(b, first_b, term + depth);
      }
      add_terms(sums, Left::at(at), Right::at(at + Left::elements));
    }
    const int lane = static_cast<int>(lane_of_warp());
    LLM_UNROLL
    for (int i = 0; i < n_left; ++i) {
      LLM_UNROLL
      for (int j = 0; j < n_right; ++j) {
        LLM_UNROLL
        for (int half = 0; half < 4; half += 2) {
          finish(first_a + first_row() + 16 * i + row_in_sums(lane, half),
                 first_b + first_column() + 8 * j + column_in_sums(lane, half), sums[i][j].x[half],
                 sums[i][j].x[half + 1]);
        }
      }
    }
  }
};

/// y = (or +=) the two sums, which are neighbours.
template <bool is_whole, typename T>
__device__ void write_pair(bool adds, float first, float second, T* y) {
  Pack<T, 2> pair{};
  if (adds) pair = load<2, is_whole>(y, 2);
  pair.at[0] = round_to<T>(adds ? to_float(pair.at[0]) + first : first);
  pair.at[1] = round_to<T>(adds ? to_float(pair.at[1]) + second : second);
  store<is_whole>(pair, y, 2);
}

/// Blocks on a multiprocessor: two have 128 registers a thread, which suffice where packs are
/// whole.
template <bool is_whole>
constexpr int n_resident = is_whole ? 2 : 1;

template <typename T, bool is_whole>
using Forward = Product<T, false, false, is_whole>;
template <typename T, bool is_whole>
using Input = Product<T, false, true, is_whole>;
template <typename T, bool is_whole>
using Weight = Product<T, true, true, is_whole>;

template <typename T, bool is_whole>
__global__ void __launch_bounds__(block_threads, n_resident<is_whole>)
    forward_kernel(GroupedLayer of, const std::int32_t* begins, const T* x, const T* weight,
                   const float* bias, T* y) {
  const std::int64_t n_column_tiles = (of.n_out + tile - 1) / tile;
  const RowTile rows = row_tile(begins, of.n_experts, blockIdx.x / n_column_tiles, tile);
  if (rows.expert < 0) return;
  const std::int64_t first_out = rows.expert * of.n_out;
  Forward<T, is_whole>::run(
      {x, rows.end, of.n_in}, rows.first, {weight + first_out * of.n_in, of.n_out, of.n_in},
      blockIdx.x % n_column_tiles * tile, of.n_in,
      [&](std::int64_t i, std::int64_t j, float first, float second) {
        if (i >= rows.end || j >= of.n_out) return;
        const float* const b = bias != nullptr ? bias + first_out + j : nullptr;
        write_pair<is_whole>(false, b != nullptr ? first + b[0] : first,
                             b != nullptr ? second + b[1] : second, y + i * of.n_out + j);
      });
}

template <typename T, bool is_whole>
__global__ void __launch_bounds__(block_threads, n_resident<is_whole>)
    input_kernel(GroupedLayer of, const std::int32_t* begins, const T* dy, const T* weight,
                 bool adds, T* dx) {
  const std::int64_t n_column_tiles = (of.n_in + tile - 1) / tile;
  const RowTile rows = row_tile(begins, of.n_experts, blockIdx.x / n_column_tiles, tile);
  if (rows.expert < 0) return;
  Input<T, is_whole>::run({dy, rows.end, of.n_out}, rows.first,
                          {weight + rows.expert * of.n_out * of.n_in, of.n_out, of.n_in},
                          blockIdx.x % n_column_tiles * tile, of.n_out,
                          [&](std::int64_t i, std::int64_t j, float first, float second) {
                            if (i >= rows.end || j >= of.n_in) return;
                            write_pair<is_whole>(adds, first, second, dx + i * of.n_in + j);
                          });
}

template <typename T, bool is_whole>
__global__ void __launch_bounds__(block_threads, n_resident<is_whole>)
    weight_kernel(GroupedLayer of, const std::int32_t* begins, const T* x, const T* dy, bool adds,
                  float* dweight) {
  const std::int64_t n_in_tiles = (of.n_in + tile - 1) / tile;
  const std::int64_t n_out_tiles = (of.n_out + tile - 1) / tile;
  const std::int64_t expert = blockIdx.x / (n_in_tiles * n_out_tiles);
  const std::int64_t begin = begins[expert];
  const std::int64_t n = begins[expert + 1] - begin;
  if (n == 0 && adds) return;
  float* const dw = dweight + expert * of.n_out * of.n_in;
  Weight<T, is_whole>::run({dy + begin * of.n_out, n, of.n_out},
                           blockIdx.x / n_in_tiles % n_out_tiles * tile,
                           {x + begin * of.n_in, n, of.n_in}, blockIdx.x % n_in_tiles * tile, n,
                           [&](std::int64_t i, std::int64_t j, float first, float second) {
                             if (i >= of.n_out || j >= of.n_in) return;
                             write_pair<is_whole>(adds, first, second, dw + i * of.n_in + j);
                           });
}

/// run(T(), whether all that begins there does so at a multiple of 16 bytes).
template <typename Run>
void with_low_type(Dtype dtype, std::initializer_list<const void*> pointers, const Run& run) {
  const auto with = [&](auto type) {
    with_packs_of<decltype(type)>(words, pointers, [&](auto is_whole) { run(type, is_whole); });
  };
  CHECK_CONTRACT(has_grouped_mma(80, dtype, words, words), "tensor cores multiply bf16 and f16");
  dtype == Dtype::bf16 ? with(Bf16()) : with(F16());
}

}  // namespace

void grouped_forward_mma(cudaStream_t stream, View begins, View x, View weight, View bias,
                         MutView y) {
  const GroupedLayer of = grouped_layer(begins, x.shape()[1], y.shape()[1]);
  const std::int64_t n_blocks = n_grouped_tiles(of, x.shape()[0], of.n_out, tile);
  with_low_type(x.dtype(), {x.data(), weight.data(), y.data()}, [&](auto type, auto is_whole) {
    using T = decltype(type);
    launch(stream, {n_blocks, block_threads, Forward<T, is_whole()>::shared_bytes},
           forward_kernel<T, is_whole()>, of, begins.as<std::int32_t>(), x.as<T>(), weight.as<T>(),
           static_cast<const float*>(bias.data()), y.as<T>());
  });
}

void grouped_backward_input_mma(cudaStream_t stream, View begins, View dy, View weight, Write write,
                                MutView dx) {
  const GroupedLayer of = grouped_layer(begins, dx.shape()[1], dy.shape()[1]);
  const std::int64_t n_blocks = n_grouped_tiles(of, dy.shape()[0], of.n_in, tile);
  with_low_type(dy.dtype(), {dy.data(), weight.data(), dx.data()}, [&](auto type, auto is_whole) {
    using T = decltype(type);
    launch(stream, {n_blocks, block_threads, Input<T, is_whole()>::shared_bytes},
           input_kernel<T, is_whole()>, of, begins.as<std::int32_t>(), dy.as<T>(), weight.as<T>(),
           write == Write::add, dx.as<T>());
  });
}

void grouped_backward_weight_mma(cudaStream_t stream, View begins, View x, View dy, Write write,
                                 MutView dweight) {
  const GroupedLayer of = grouped_layer(begins, x.shape()[1], dy.shape()[1]);
  const std::int64_t n_blocks =
      of.n_experts * ((of.n_out + tile - 1) / tile) * ((of.n_in + tile - 1) / tile);
  with_low_type(x.dtype(), {x.data(), dy.data(), dweight.data()}, [&](auto type, auto is_whole) {
    using T = decltype(type);
    launch(stream, {n_blocks, block_threads, Weight<T, is_whole()>::shared_bytes},
           weight_kernel<T, is_whole()>, of, begins.as<std::int32_t>(), x.as<T>(), dy.as<T>(),
           write == Write::add, dweight.as<float>());
  });
}

}  // namespace llm::cuda
