#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/activation_value.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

struct Extent {
  std::int64_t n;
  std::int64_t width;  ///< where rows are counted
  /// The elements that are there: all, or those of the first *n_rows rows.
  __device__ std::int64_t used(const std::int32_t* n_rows) const {
    return n_rows == nullptr || *n_rows * width > n ? n : *n_rows * width;
  }
};

template <typename T>
__global__ void forward_kernel(Activation f, const T* x, T* y, Extent extent,
                               const std::int32_t* n_rows) {
  const std::int64_t n = extent.used(n_rows);
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<T>(activation_at(f, to_float(x[i])).value);
  }
}

template <typename T>
__global__ void backward_kernel(Activation f, const T* x, const T* dy, T* dx, Extent extent,
                                const std::int32_t* n_rows) {
  const std::int64_t n = extent.used(n_rows);
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    dx[i] = round_to<T>(activation_at(f, to_float(x[i])).slope * to_float(dy[i]));
  }
}

template <typename T>
__global__ void gated_forward_kernel(Activation f, const T* gate, const T* up, T* y, Extent extent,
                                     const std::int32_t* n_rows) {
  const std::int64_t n = extent.used(n_rows);
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    y[i] = round_to<T>(activation_at(f, to_float(gate[i])).value * to_float(up[i]));
  }
}

template <typename T>
__global__ void gated_backward_kernel(Activation f, const T* gate, const T* up, const T* dy,
                                      T* dgate, T* dup, Extent extent, const std::int32_t* n_rows) {
  const std::int64_t n = extent.used(n_rows);
  for (std::int64_t i = first_element(); i < n; i += element_stride()) {
    const ValueAndSlope at = activation_at(f, to_float(gate[i]));
    const float dy_i = to_float(dy[i]);  // dup may be dy
    dgate[i] = round_to<T>(dy_i * to_float(up[i]) * at.slope);
    dup[i] = round_to<T>(dy_i * at.value);
  }
}

Extent extent_of(const View& x, const View& n_rows) {
  return {x.n_elements(), n_rows.empty() ? 0 : x.shape()[1]};
}

const std::int32_t* pointer(const View& n_rows) {
  return static_cast<const std::int32_t*>(n_rows.data());
}

}  // namespace

void activation_forward(cudaStream_t stream, Activation f, View x, MutView y, View n_rows) {
  const Extent extent = extent_of(x, n_rows);
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(extent.n), forward_kernel<T>, f, x.as<T>(), y.as<T>(), extent,
           pointer(n_rows));
  });
}

void activation_backward(cudaStream_t stream, Activation f, View x, View dy, MutView dx,
                         View n_rows) {
  const Extent extent = extent_of(x, n_rows);
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(extent.n), backward_kernel<T>, f, x.as<T>(), dy.as<T>(), dx.as<T>(),
           extent, pointer(n_rows));
  });
}

void gated_forward(cudaStream_t stream, Activation f, View gate, View up, MutView y, View n_rows) {
  const Extent extent = extent_of(gate, n_rows);
  with_type_of(gate.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(extent.n), gated_forward_kernel<T>, f, gate.as<T>(), up.as<T>(),
           y.as<T>(), extent, pointer(n_rows));
  });
}

void gated_backward(cudaStream_t stream, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup, View n_rows) {
  const Extent extent = extent_of(gate, n_rows);
  with_type_of(gate.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(extent.n), gated_backward_kernel<T>, f, gate.as<T>(), up.as<T>(),
           dy.as<T>(), dgate.as<T>(), dup.as<T>(), extent, pointer(n_rows));
  });
}

}  // namespace llm::cuda
