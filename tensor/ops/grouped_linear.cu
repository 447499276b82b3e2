#include "tensor/ops/grouped_linear.h"

#include "tensor/cuda/grouped_mma.h"
#include "tensor/cuda/grouped_tiles.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

// The plain products: a block has a tile of one expert's product, a thread a square of it, and
// terms are added one after the other, so that a row's bits do not depend on its tile.
namespace llm::cuda {
namespace {

constexpr std::int64_t tile = 64;   // of rows and columns
constexpr std::int64_t depth = 16;  // terms that are in shared memory at a time
constexpr std::int64_t square = 4;  // of a thread: 8 reads of shared memory for 16 products
constexpr std::int64_t squares = tile / square;
constexpr std::int64_t pitch = tile + square;  // keeps packs of four aligned, banks apart
static_assert(squares * squares == block_threads);
constexpr unsigned tiles_bytes = 2 * depth * pitch * sizeof(float);

/// Element (i, k) of a matrix is at i * row + k * term.
template <typename T>
struct Matrix {
  const T* data;
  std::int64_t row;
  std::int64_t term;
  std::int64_t n_rows;
};

/// A tile's rows from `first_row` on and its terms from `first_term` on, term by term; 0 where
/// there are none. Neighbouring threads read neighbours.
template <typename T>
__device__ void load_tile(const Matrix<T>& x, std::int64_t first_row, std::int64_t first_term,
                          std::int64_t n_terms, float* to) {
  for (std::int64_t e = threadIdx.x; e < tile * depth; e += block_threads) {
    const std::int64_t i = x.term == 1 ? e / depth : e % tile;
    const std::int64_t k = x.term == 1 ? e % depth : e / tile;
    const std::int64_t row = first_row + i;
    const std::int64_t term = first_term + k;
    const bool is_there = row < x.n_rows && term < n_terms;
    to[k * pitch + i] = is_there ? to_float(x.data[row * x.row + term * x.term]) : 0;
  }
}

/// finish(i, j, the sum over terms of a (i, k) b (j, k)) for each element of the tile that is
/// there.
template <typename T, typename Finish>
__device__ void multiply(const Matrix<T>& a, std::int64_t first_a, const Matrix<T>& b,
                         std::int64_t first_b, std::int64_t n_terms, const Finish& finish) {
  float* const a_tile = shared<float>();
  float* const b_tile = a_tile + depth * pitch;
  const std::int64_t in_a = threadIdx.x / squares * square;
  const std::int64_t in_b = threadIdx.x % squares * square;
  float sums[square][square] = {};
  for (std::int64_t first = 0; first < n_terms; first += depth) {
    load_tile(a, first_a, first, n_terms, a_tile);
    load_tile(b, first_b, first, n_terms, b_tile);
    __syncthreads();
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t i = 0; i < square; ++i) {
        const float of_a = a_tile[k * pitch + in_a + i];
        for (std::int64_t j = 0; j < square; ++j) {
          sums[i][j] += of_a * b_tile[k * pitch + in_b + j];
        }
      }
    }
    __syncthreads();
  }
  for (std::int64_t i = 0; i < square; ++i) {
    for (std::int64_t j = 0; j < square; ++j) {
      const std::int64_t row = first_a + in_a + i;
      const std::int64_t column = first_b + in_b + j;
      if (row < a.n_rows && column < b.n_rows) finish(row, column, sums[i][j]);
    }
  }
}

template <typename T>
__global__ void forward_kernel(GroupedLayer of, const std::int32_t* begins, const T* x,
                               const T* weight, const float* bias, T* y) {
  const std::int64_t n_column_tiles = (of.n_out + tile - 1) / tile;
  const RowTile rows = row_tile(begins, of.n_experts, blockIdx.x / n_column_tiles, tile);
  if (rows.expert < 0) return;
  const std::int64_t first_out = rows.expert * of.n_out;
  const Matrix<T> a{x, of.n_in, 1, rows.end};
  const Matrix<T> b{weight + first_out * of.n_in, of.n_in, 1, of.n_out};
  const std::int64_t first_column = blockIdx.x % n_column_tiles * tile;
  multiply(a, rows.first, b, first_column, of.n_in, [&](std::int64_t i, std::int64_t j, float sum) {
    y[i * of.n_out + j] = round_to<T>(bias != nullptr ? sum + bias[first_out + j] : sum);
  });
}

template <typename T>
__global__ void input_kernel(GroupedLayer of, const std::int32_t* begins, const T* dy,
                             const T* weight, bool adds, T* dx) {
  const std::int64_t n_column_tiles = (of.n_in + tile - 1) / tile;
  const RowTile rows = row_tile(begins, of.n_experts, blockIdx.x / n_column_tiles, tile);
  if (rows.expert < 0) return;
  const Matrix<T> a{dy, of.n_out, 1, rows.end};
  const Matrix<T> b{weight + rows.expert * of.n_out * of.n_in, 1, of.n_in, of.n_in};
  const std::int64_t first_column = blockIdx.x % n_column_tiles * tile;
  multiply(a, rows.first, b, first_column, of.n_out,
           [&](std::int64_t i, std::int64_t j, float sum) {
             T& out = dx[i * of.n_in + j];
             out = round_to<T>(adds ? to_float(out) + sum : sum);
           });
}

template <typename T>
__global__ void weight_kernel(GroupedLayer of, const std::int32_t* begins, const T* x, const T* dy,
                              bool adds, float* dweight) {
  const std::int64_t n_in_tiles = (of.n_in + tile - 1) / tile;
  const std::int64_t n_out_tiles = (of.n_out + tile - 1) / tile;
  const std::int64_t expert = blockIdx.x / (n_in_tiles * n_out_tiles);
  const std::int64_t begin = begins[expert];
  const std::int64_t n = begins[expert + 1] - begin;
  if (n == 0 && adds) return;
  const Matrix<T> a{dy + begin * of.n_out, 1, of.n_out, of.n_out};
  const Matrix<T> b{x + begin * of.n_in, 1, of.n_in, of.n_in};
  const std::int64_t first_out = blockIdx.x / n_in_tiles % n_out_tiles * tile;
  const std::int64_t first_in = blockIdx.x % n_in_tiles * tile;
  float* const dw = dweight + expert * of.n_out * of.n_in;
  multiply(a, first_out, b, first_in, n, [&](std::int64_t i, std::int64_t j, float sum) {
    float& out = dw[i * of.n_in + j];
    out = adds ? out + sum : sum;
  });
}

/// A thread has a column, through all rows of its expert in order.
template <typename T>
__global__ void bias_kernel(GroupedLayer of, const std::int32_t* begins, const T* dy, bool adds,
                            float* dbias) {
  const std::int64_t n_columns = of.n_experts * of.n_out;
  for (std::int64_t c = first_element(); c < n_columns; c += element_stride()) {
    const std::int64_t expert = c / of.n_out;
    const std::int64_t end = begins[expert + 1];
    if (adds && begins[expert] == end) continue;
    float sum = 0;
    for (std::int64_t r = begins[expert]; r < end; ++r) {
      sum += to_float(dy[r * of.n_out + c % of.n_out]);
    }
    dbias[c] = adds ? dbias[c] + sum : sum;
  }
}

std::int64_t n_tiles(std::int64_t n) {
  return (n + tile - 1) / tile;
}

Grid rows_grid(const GroupedLayer& of, std::int64_t n_rows, std::int64_t n_columns) {
  return {n_grouped_tiles(of, n_rows, n_columns, tile), block_threads, tiles_bytes};
}

}  // namespace

void grouped_linear_forward(cudaStream_t stream, View begins, View x, View weight, View bias,
                            MutView y) {
  const GroupedLayer of = grouped_layer(begins, x.shape()[1], y.shape()[1]);
  if (has_grouped_mma(capability(), x.dtype(), of.n_in, of.n_out)) {
    return grouped_forward_mma(stream, begins, x, weight, bias, y);
  }
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(of, x.shape()[0], of.n_out), forward_kernel<T>, of,
           begins.as<std::int32_t>(), x.as<T>(), weight.as<T>(),
           static_cast<const float*>(bias.data()), y.as<T>());
  });
}

void grouped_linear_backward_input(cudaStream_t stream, View begins, View dy, View weight,
                                   Write write, MutView dx) {
  const GroupedLayer of = grouped_layer(begins, dx.shape()[1], dy.shape()[1]);
  if (has_grouped_mma(capability(), dy.dtype(), of.n_in, of.n_out)) {
    return grouped_backward_input_mma(stream, begins, dy, weight, write, dx);
  }
  with_type_of(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(of, dy.shape()[0], of.n_in), input_kernel<T>, of,
           begins.as<std::int32_t>(), dy.as<T>(), weight.as<T>(), write == Write::add, dx.as<T>());
  });
}

void grouped_linear_backward_weight(cudaStream_t stream, View begins, View x, View dy, Write write,
                                    MutView dweight, MutView dbias) {
  const GroupedLayer of = grouped_layer(begins, x.shape()[1], dy.shape()[1]);
  const Grid grid{of.n_experts * n_tiles(of.n_out) * n_tiles(of.n_in), block_threads, tiles_bytes};
  const bool adds = write == Write::add;
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (has_grouped_mma(capability(), x.dtype(), of.n_in, of.n_out)) {
      grouped_backward_weight_mma(stream, begins, x, dy, write, dweight);
    } else {
      launch(stream, grid, weight_kernel<T>, of, begins.as<std::int32_t>(), x.as<T>(), dy.as<T>(),
             adds, dweight.as<float>());
    }
    if (dbias.empty()) return;
    launch(stream, grid_of(of.n_experts * of.n_out), bias_kernel<T>, of, begins.as<std::int32_t>(),
           dy.as<T>(), adds, dbias.as<float>());
  });
}

}  // namespace llm::cuda
