#include <initializer_list>

#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
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

template <typename T, bool is_whole>
__global__ void forward_kernel(Activation f, const T* x, T* y, Extent extent,
                               const std::int32_t* n_rows) {
  constexpr int n = pack_size<T>;
  for_each_pack<n>(extent.used(n_rows), [&](std::int64_t at, std::int64_t n_left) {
    auto pack = load<n, is_whole>(x + at, n_left);
    for (T& element : pack.at) element = round_to<T>(activation_at(f, to_float(element)).value);
    store<is_whole>(pack, y + at, n_left);
  });
}

template <typename T, bool is_whole>
__global__ void backward_kernel(Activation f, const T* x, const T* dy, T* dx, Extent extent,
                                const std::int32_t* n_rows) {
  constexpr int n = pack_size<T>;
  for_each_pack<n>(extent.used(n_rows), [&](std::int64_t at, std::int64_t n_left) {
    const auto of_x = load<n, is_whole>(x + at, n_left);
    auto grad = load<n, is_whole>(dy + at, n_left);
    for (int i = 0; i < n; ++i) {
      const float slope = activation_at(f, to_float(of_x.at[i])).slope;
      grad.at[i] = round_to<T>(slope * to_float(grad.at[i]));
    }
    store<is_whole>(grad, dx + at, n_left);
  });
}

template <typename T, bool is_whole>
__global__ void gated_forward_kernel(Activation f, const T* gate, const T* up, T* y, Extent extent,
                                     const std::int32_t* n_rows) {
  constexpr int n = pack_size<T>;
  for_each_pack<n>(extent.used(n_rows), [&](std::int64_t at, std::int64_t n_left) {
    const auto of_gate = load<n, is_whole>(gate + at, n_left);
    auto out = load<n, is_whole>(up + at, n_left);
    for (int i = 0; i < n; ++i) {
      const float value = activation_at(f, to_float(of_gate.at[i])).value;
      out.at[i] = round_to<T>(value * to_float(out.at[i]));
    }
    store<is_whole>(out, y + at, n_left);
  });
}

/// dup may be dy: a pack is read before it is written.
template <typename T, bool is_whole>
__global__ void gated_backward_kernel(Activation f, const T* gate, const T* up, const T* dy,
                                      T* dgate, T* dup, Extent extent, const std::int32_t* n_rows) {
  constexpr int n = pack_size<T>;
  for_each_pack<n>(extent.used(n_rows), [&](std::int64_t at, std::int64_t n_left) {
    auto of_gate = load<n, is_whole>(gate + at, n_left);
    auto of_up = load<n, is_whole>(up + at, n_left);
    const auto grad = load<n, is_whole>(dy + at, n_left);
    for (int i = 0; i < n; ++i) {
      const ValueAndSlope at_gate = activation_at(f, to_float(of_gate.at[i]));
      const float dy_i = to_float(grad.at[i]);
      of_gate.at[i] = round_to<T>(dy_i * to_float(of_up.at[i]) * at_gate.slope);
      of_up.at[i] = round_to<T>(dy_i * at_gate.value);
    }
    store<is_whole>(of_gate, dgate + at, n_left);
    store<is_whole>(of_up, dup + at, n_left);
  });
}

Extent extent_of(const View& x, const View& n_rows) {
  return {x.n_elements(), n_rows.empty() ? 0 : x.shape()[1]};
}

const std::int32_t* pointer(const View& n_rows) {
  return static_cast<const std::int32_t*>(n_rows.data());
}

/// run(T(), whether packs are whole) for tensors like x; rows that are there are whole packs too.
template <typename Run>
void with_packs(const View& x, const View& n_rows, std::initializer_list<const void*> pointers,
                const Run& run) {
  with_type_of(x.dtype(), [&](auto type) {
    const std::int64_t width = n_rows.empty() ? x.n_elements() : x.shape()[1];
    with_packs_of<decltype(type)>(width, pointers, [&](auto is_whole) { run(type, is_whole); });
  });
}

}  // namespace

void activation_forward(cudaStream_t stream, Activation f, View x, MutView y, View n_rows) {
  const Extent extent = extent_of(x, n_rows);
  with_packs(x, n_rows, {x.data(), y.data()}, [&](auto type, auto is_whole) {
    using T = decltype(type);
    launch(stream, packs_grid(extent.n, pack_size<T>), forward_kernel<T, is_whole()>, f, x.as<T>(),
           y.as<T>(), extent, pointer(n_rows));
  });
}

void activation_backward(cudaStream_t stream, Activation f, View x, View dy, MutView dx,
                         View n_rows) {
  const Extent extent = extent_of(x, n_rows);
  with_packs(x, n_rows, {x.data(), dy.data(), dx.data()}, [&](auto type, auto is_whole) {
    using T = decltype(type);
    launch(stream, packs_grid(extent.n, pack_size<T>), backward_kernel<T, is_whole()>, f, x.as<T>(),
           dy.as<T>(), dx.as<T>(), extent, pointer(n_rows));
  });
}

void gated_forward(cudaStream_t stream, Activation f, View gate, View up, MutView y, View n_rows) {
  const Extent extent = extent_of(gate, n_rows);
  with_packs(gate, n_rows, {gate.data(), up.data(), y.data()}, [&](auto type, auto is_whole) {
    using T = decltype(type);
    launch(stream, packs_grid(extent.n, pack_size<T>), gated_forward_kernel<T, is_whole()>, f,
           gate.as<T>(), up.as<T>(), y.as<T>(), extent, pointer(n_rows));
  });
}

void gated_backward(cudaStream_t stream, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup, View n_rows) {
  const Extent extent = extent_of(gate, n_rows);
  with_packs(gate, n_rows, {gate.data(), up.data(), dy.data(), dgate.data(), dup.data()},
             [&](auto type, auto is_whole) {
               using T = decltype(type);
               launch(stream, packs_grid(extent.n, pack_size<T>),
                      gated_backward_kernel<T, is_whole()>, f, gate.as<T>(), up.as<T>(), dy.as<T>(),
                      dgate.as<T>(), dup.as<T>(), extent, pointer(n_rows));
             });
}

}  // namespace llm::cuda
