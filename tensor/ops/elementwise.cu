#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

template <typename X, typename Y>
__global__ void convert_kernel(const X* x, Y* y, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<Y>(to_float(x[i]));
  }
}

template <typename Y>
__global__ void fill_kernel(float value, Y* y, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) y[i] = round_to<Y>(value);
}

template <typename X, typename Y>
__global__ void add_kernel(const X* x, Y* y, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<Y>(to_float(y[i]) + to_float(x[i]));
  }
}

template <typename Y>
__global__ void add_rows_kernel(const float* bias, Y* y, std::int64_t n, std::int64_t width) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<Y>(to_float(y[i]) + bias[i % width]);
  }
}

/// run(X(), Y()) with the types of both.
template <typename Run>
void with_types_of(Dtype x, Dtype y, const Run& run) {
  with_type_of(x, [&](auto from) { with_type_of(y, [&](auto to) { run(from, to); }); });
}

}  // namespace

void copy(cudaStream_t stream, View x, MutView y) {
  if (x.n_elements() == 0) return;
  const auto n_bytes = static_cast<std::size_t>(x.n_bytes());
  check(cudaMemcpyAsync(y.data(), x.data(), n_bytes, cudaMemcpyDeviceToDevice, stream), "a copy");
}

void convert(cudaStream_t stream, View x, MutView y) {
  const std::int64_t n = y.n_elements();
  with_types_of(x.dtype(), y.dtype(), [&](auto from, auto to) {
    using X = decltype(from);
    using Y = decltype(to);
    launch(stream, grid_of(n), convert_kernel<X, Y>, x.as<X>(), y.as<Y>(), n);
  });
}

void fill(cudaStream_t stream, float value, MutView y) {
  const std::int64_t n = y.n_elements();
  with_type_of(y.dtype(), [&](auto to) {
    using Y = decltype(to);
    launch(stream, grid_of(n), fill_kernel<Y>, value, y.as<Y>(), n);
  });
}

void add(cudaStream_t stream, View x, MutView y) {
  const std::int64_t n = y.n_elements();
  with_types_of(x.dtype(), y.dtype(), [&](auto from, auto to) {
    using X = decltype(from);
    using Y = decltype(to);
    launch(stream, grid_of(n), add_kernel<X, Y>, x.as<X>(), y.as<Y>(), n);
  });
}

void add_rows(cudaStream_t stream, View bias, MutView y) {
  const std::int64_t n = y.n_elements();
  with_type_of(y.dtype(), [&](auto to) {
    using Y = decltype(to);
    launch(stream, grid_of(n), add_rows_kernel<Y>, bias.as<float>(), y.as<Y>(), n, y.shape()[1]);
  });
}

}  // namespace llm::cuda
