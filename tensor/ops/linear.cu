#include "tensor/cuda/column_sums.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
#include "tensor/cuda/products.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

constexpr std::int64_t tile = 16;  // a block has a tile of the product, a thread an element
static_assert(tile * tile == block_threads);
constexpr std::int64_t pitch = tile + 1;  // neighbours in a column lie in other banks

/// c (rows, columns) = a b (+ bias, + what is there); element (i, k) of a is at i * row + k * depth
/// of its matrix.
struct Product {
  std::int64_t rows, columns, depth;
  struct Strides {
    std::int64_t row, column;
  } a, b;
  bool adds;
};

/// Terms are added one after the other, whatever the tile: the plain product, in f32.
template <typename T, typename Y>
__global__ void product_kernel(Product p, const T* a, const T* b, const float* bias, Y* c) {
  float* const a_tile = shared<float>();
  float* const b_tile = a_tile + tile * pitch;
  const std::int64_t n_column_tiles = (p.columns + tile - 1) / tile;
  const std::int64_t in_row = threadIdx.x / tile;
  const std::int64_t in_column = threadIdx.x % tile;
  const std::int64_t i = blockIdx.x / n_column_tiles * tile + in_row;
  const std::int64_t j = blockIdx.x % n_column_tiles * tile + in_column;
  float sum = 0;
  for (std::int64_t first = 0; first < p.depth; first += tile) {
    const std::int64_t ka = first + in_column;
    const std::int64_t kb = first + in_row;
    const bool has_a = i < p.rows && ka < p.depth;
    const bool has_b = j < p.columns && kb < p.depth;
    a_tile[in_row * pitch + in_column] = has_a ? to_float(a[i * p.a.row + ka * p.a.column]) : 0;
    b_tile[in_row * pitch + in_column] = has_b ? to_float(b[kb * p.b.row + j * p.b.column]) : 0;
    __syncthreads();
    for (std::int64_t k = 0; k < tile; ++k) {
      sum += a_tile[in_row * pitch + k] * b_tile[k * pitch + in_column];
    }
    __syncthreads();
  }
  if (i >= p.rows || j >= p.columns) return;
  Y& out = c[i * p.columns + j];
  if (bias != nullptr) sum += bias[j];
  out = round_to<Y>(p.adds ? to_float(out) + sum : sum);
}

template <typename T, bool is_whole>
__global__ void sum_rows_kernel(Strips strips, const T* dy, float* partials) {
  constexpr int n = pack_size<T>;
  add_strip<1, n>(
      strips,
      [&](std::int64_t r, std::int64_t c, std::int64_t n_left, ColumnSums<1, n>& sums) {
        const auto pack = load<n, is_whole>(dy + r * strips.width + c, n_left);
        for (int i = 0; i < n; ++i) sums.at[0][i] += to_float(pack.at[i]);
      },
      partials);
}

template <typename T>
void sum_rows(cudaStream_t stream, const View& dy, bool adds, float* dbias) {
  const Strips strips(dy.shape()[0], dy.shape()[1]);
  const Scratch scratch(strips.sums_bytes(), stream);
  auto* const partials = scratch.as<float>();
  with_packs_of<T>(strips.width, {dy.data()}, [&](auto is_whole) {
    launch(stream, strips.grid(pack_size<T>, 1), sum_rows_kernel<T, is_whole()>, strips, dy.as<T>(),
           partials);
  });
  add_strips(stream, strips, partials, adds, dbias);
}

template <typename T, typename Y>
void product(cudaStream_t stream, const Product& p, const T* a, const T* b, const float* bias,
             Y* c) {
  const std::int64_t n_tiles = (p.rows + tile - 1) / tile * ((p.columns + tile - 1) / tile);
  const Grid grid{n_tiles, block_threads, 2 * tile * pitch * sizeof(float)};
  launch(stream, grid, product_kernel<T, Y>, p, a, b, bias, c);
}

/// The library's products in this stream; nullptr where it has none, or none of this shape.
Products* library_of(cudaStream_t stream, const View& a, const View& b) {
  return a.n_elements() > 0 && b.n_elements() > 0 ? Products::of(stream) : nullptr;
}

}  // namespace

void linear_forward(cudaStream_t stream, View x, View weight, View bias, MutView y) {
  if (Products* const library = library_of(stream, x, weight)) {
    return library->multiply({x}, {weight, true}, bias, Write::set, y);
  }
  const std::int64_t in = x.shape()[1];
  const Product p{x.shape()[0], weight.shape()[0], in, {in, 1}, {1, in}, false};
  const auto* const b = static_cast<const float*>(bias.data());
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (y.dtype() == Dtype::f32) {
      product(stream, p, x.as<T>(), weight.as<T>(), b, y.as<float>());
    } else {
      product(stream, p, x.as<T>(), weight.as<T>(), b, y.as<T>());
    }
  });
}

void linear_gelu_tanh(cudaStream_t stream, View x, View weight, View bias, MutView up,
                      MutView hidden, Hidden use) {
  Products* const library = x.dtype() == Dtype::f32 ? library_of(stream, x, weight) : nullptr;
  const bool is_one =
      library != nullptr && library->multiply_gelu_tanh({x}, {weight, true}, bias, up, hidden);
  if (is_one) return;
  linear_forward(stream, x, weight, bias, up);
  if (use == Hidden::wanted) activation_forward(stream, Activation::gelu_tanh, up, hidden);
}

void linear_backward_input(cudaStream_t stream, View dy, View weight, Write write, MutView dx) {
  if (Products* const library = library_of(stream, dy, weight)) {
    return library->multiply({dy}, {weight}, View(), write, dx);
  }
  const std::int64_t in = weight.shape()[1];
  const std::int64_t out = weight.shape()[0];
  const Product p{dy.shape()[0], in, out, {out, 1}, {in, 1}, write == Write::add};
  with_type_of(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    product(stream, p, dy.as<T>(), weight.as<T>(), nullptr, dx.as<T>());
  });
}

void linear_backward_weight(cudaStream_t stream, View x, View dy, Write write, MutView dweight,
                            MutView dbias) {
  const std::int64_t in = x.shape()[1];
  const std::int64_t out = dy.shape()[1];
  const std::int64_t n = x.shape()[0];
  const Product p{out, in, n, {1, out}, {in, 1}, write == Write::add};
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (Products* const library = library_of(stream, x, dy)) {
      library->multiply({dy, true}, {x}, View(), write, dweight);
    } else {
      product(stream, p, dy.as<T>(), x.as<T>(), nullptr, dweight.as<float>());
    }
    if (dbias.empty()) return;
    sum_rows<T>(stream, dy, write == Write::add, dbias.as<float>());
  });
}

}  // namespace llm::cuda
