#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/activation_value.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

template <typename T>
__global__ void forward_kernel(Activation f, const T* x, T* y, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<T>(activation_at(f, to_float(x[i])).value);
  }
}

template <typename T>
__global__ void backward_kernel(Activation f, const T* x, const T* dy, T* dx, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    dx[i] = round_to<T>(activation_at(f, to_float(x[i])).slope * to_float(dy[i]));
  }
}

template <typename T>
__global__ void gated_forward_kernel(Activation f, const T* gate, const T* up, T* y,
                                     std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<T>(activation_at(f, to_float(gate[i])).value * to_float(up[i]));
  }
}

template <typename T>
__global__ void gated_backward_kernel(Activation f, const T* gate, const T* up, const T* dy,
                                      T* dgate, T* dup, std::int64_t n) {
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    const ValueAndSlope at = activation_at(f, to_float(gate[i]));
    const float dy_i = to_float(dy[i]);  // dup may be dy
    dgate[i] = round_to<T>(dy_i * to_float(up[i]) * at.slope);
    dup[i] = round_to<T>(dy_i * at.value);
  }
}

}  // namespace

void activation_forward(cudaStream_t stream, Activation f, View x, MutView y) {
  const std::int64_t n = x.n_elements();
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(n), forward_kernel<T>, f, x.as<T>(), y.as<T>(), n);
  });
}

void activation_backward(cudaStream_t stream, Activation f, View x, View dy, MutView dx) {
  const std::int64_t n = x.n_elements();
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(n), backward_kernel<T>, f, x.as<T>(), dy.as<T>(), dx.as<T>(), n);
  });
}

void gated_forward(cudaStream_t stream, Activation f, View gate, View up, MutView y) {
  const std::int64_t n = gate.n_elements();
  with_type_of(gate.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(n), gated_forward_kernel<T>, f, gate.as<T>(), up.as<T>(), y.as<T>(), n);
  });
}

void gated_backward(cudaStream_t stream, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup) {
  const std::int64_t n = gate.n_elements();
  with_type_of(gate.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(n), gated_backward_kernel<T>, f, gate.as<T>(), up.as<T>(), dy.as<T>(),
           dgate.as<T>(), dup.as<T>(), n);
  });
}

}  // namespace llm::cuda
