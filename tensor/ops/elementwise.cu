#include <type_traits>

#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// Of two types, in a pack: 16 bytes of the smaller one.
template <typename X, typename Y>
inline constexpr int pack_of_two = pack_size<X> > pack_size<Y> ? pack_size<X> : pack_size<Y>;

template <typename X, typename Y, bool is_whole>
__global__ void convert_kernel(const X* x, Y* y, std::int64_t n_elements) {
  constexpr int n = pack_of_two<X, Y>;
  for_each_pack<n>(n_elements, [&](std::int64_t at, std::int64_t n_left) {
    const auto from = load<n, is_whole>(x + at, n_left);
    Pack<Y, n> to;
    for (int i = 0; i < n; ++i) to.at[i] = round_to<Y>(to_float(from.at[i]));
    store<is_whole>(to, y + at, n_left);
  });
}

template <typename Y>
__global__ void fill_kernel(float value, Y* y, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) y[i] = round_to<Y>(value);
}

__global__ void write_numbers_kernel(GraphNumbers numbers, std::int64_t* to) {
  if (threadIdx.x < GraphNumbers::most) to[threadIdx.x] = numbers.values[threadIdx.x];
}

template <typename X, typename Y, bool is_whole>
__global__ void add_kernel(const X* x, Y* y, std::int64_t n_elements) {
  constexpr int n = pack_of_two<X, Y>;
  for_each_pack<n>(n_elements, [&](std::int64_t at, std::int64_t n_left) {
    const auto from = load<n, is_whole>(x + at, n_left);
    auto to = load<n, is_whole>(y + at, n_left);
    for (int i = 0; i < n; ++i) to.at[i] = round_to<Y>(to_float(to.at[i]) + to_float(from.at[i]));
    store<is_whole>(to, y + at, n_left);
  });
}

/// A block takes a row.
template <typename Y, bool is_whole>
__global__ void add_rows_kernel(const float* bias, Y* y, std::int64_t n_rows, std::int64_t width) {
  constexpr int n = pack_size<Y>;
  for (std::int64_t r = blockIdx.x; r < n_rows; r += gridDim.x) {
    for (std::int64_t c = threadIdx.x * n; c < width; c += blockDim.x * n) {
      const auto b = load<n, is_whole>(bias + c, width - c);
      auto to = load<n, is_whole>(y + r * width + c, width - c);
      for (int i = 0; i < n; ++i) to.at[i] = round_to<Y>(to_float(to.at[i]) + b.at[i]);
      store<is_whole>(to, y + r * width + c, width - c);
    }
  }
}

/// run(X(), Y(), whether elements are whole packs) with the types of both.
template <typename Run>
void with_packs_of_two(const View& x, const MutView& y, const Run& run) {
  with_type_of(x.dtype(), [&](auto from) {
    with_type_of(y.dtype(), [&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      using Smaller = std::conditional_t<(sizeof(X) < sizeof(Y)), X, Y>;
      with_packs_of<Smaller>(y.n_elements(), {x.data(), y.data()},
                             [&](auto is_whole) { run(from, to, is_whole); });
    });
  });
}

}  // namespace

void copy(cudaStream_t stream, View x, MutView y) {
  if (x.n_elements() == 0) return;
  const auto n_bytes = static_cast<std::size_t>(x.n_bytes());
  check(cudaMemcpyAsync(y.data(), x.data(), n_bytes, cudaMemcpyDeviceToDevice, stream), "a copy");
}

void convert(cudaStream_t stream, View x, MutView y) {
  const std::int64_t n = y.n_elements();
  with_packs_of_two(x, y, [&](auto from, auto to, auto is_whole) {
    using X = decltype(from);
    using Y = decltype(to);
    launch(stream, packs_grid(n, pack_of_two<X, Y>), convert_kernel<X, Y, is_whole()>, x.as<X>(),
           y.as<Y>(), n);
  });
}

void fill(cudaStream_t stream, float value, MutView y) {
  const std::int64_t n = y.n_elements();
  with_type_of(y.dtype(), [&](auto to) {
    using Y = decltype(to);
    launch(stream, grid_of(n), fill_kernel<Y>, value, y.as<Y>(), n);
  });
}

void write_numbers(cudaStream_t stream, const GraphNumbers& numbers, std::int64_t* to) {
  static_assert(GraphNumbers::most <= block_threads);
  launch(stream, Grid{}, write_numbers_kernel, numbers, to);
}

void add(cudaStream_t stream, View x, MutView y) {
  const std::int64_t n = y.n_elements();
  with_packs_of_two(x, y, [&](auto from, auto to, auto is_whole) {
    using X = decltype(from);
    using Y = decltype(to);
    launch(stream, packs_grid(n, pack_of_two<X, Y>), add_kernel<X, Y, is_whole()>, x.as<X>(),
           y.as<Y>(), n);
  });
}

void add_rows(cudaStream_t stream, View bias, MutView y) {
  const std::int64_t n_rows = y.shape()[0];
  const std::int64_t width = y.shape()[1];
  with_type_of(y.dtype(), [&](auto to) {
    using Y = decltype(to);
    with_packs_of<Y>(width, {bias.data(), y.data()}, [&](auto is_whole) {
      launch(stream, packed_rows_grid(n_rows, width, pack_size<Y>), add_rows_kernel<Y, is_whole()>,
             bias.as<float>(), y.as<Y>(), n_rows, width);
    });
  });
}

}  // namespace llm::cuda
