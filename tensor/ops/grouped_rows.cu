#include "tensor/ops/grouped_rows.h"

#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

// A warp takes a row, or a token.
namespace llm::cuda {
namespace {

/// y[r] = x[token of row r], rows of n units.
template <typename Unit>
__global__ void group_kernel(std::int64_t top_k, const std::int32_t* visits,
                             const std::int32_t* n_used, std::int64_t n_units, const Unit* x,
                             Unit* y) {
  for (std::int64_t r = first_warp(); r < *n_used; r += warp_stride()) {
    const Unit* const from = x + visits[r] / top_k * n_units;
    Unit* const to = y + r * n_units;
    for (std::int64_t u = lane_of_warp(); u < n_units; u += lanes) to[u] = from[u];
  }
}

struct Rows {
  std::int64_t n_tokens;
  std::int64_t top_k;
  std::int64_t width;
};

/// Sums go over a token's visits in order, as in the plain body. Without weights, each is 1.
template <typename T, bool is_whole>
__global__ void combine_kernel(Rows of, const std::int32_t* rows, const float* weights, const T* x,
                               T* y) {
  constexpr int n = pack_size<T>;
  for (std::int64_t t = first_warp(); t < of.n_tokens; t += warp_stride()) {
    for (std::int64_t c = lane_of_warp() * n; c < of.width; c += lanes * n) {
      float sums[n] = {};
      for (std::int64_t v = t * of.top_k; v < (t + 1) * of.top_k; ++v) {
        if (rows[v] < 0) continue;
        const float weight = weights != nullptr ? weights[v] : 1.0f;
        const auto pack = load<n, is_whole>(x + rows[v] * of.width + c, of.width - c);
        for (int i = 0; i < n; ++i) sums[i] += weight * to_float(pack.at[i]);
      }
      Pack<T, n> sum;
      for (int i = 0; i < n; ++i) sum.at[i] = round_to<T>(sums[i]);
      store<is_whole>(sum, y + t * of.width + c, of.width - c);
    }
  }
}

/// A warp takes a visit. dx may be x: a lane reads an element before it writes it, and no other
/// lane has it.
template <typename T, bool is_whole>
__global__ void combine_backward_kernel(Rows of, const std::int32_t* rows, const float* weights,
                                        const T* x, const T* dy, T* dx, float* dweights) {
  constexpr int n = pack_size<T>;
  for (std::int64_t v = first_warp(); v < of.n_tokens * of.top_k; v += warp_stride()) {
    const std::int64_t row = rows[v];
    float dot = 0;
    for (std::int64_t c = lane_of_warp() * n; row >= 0 && c < of.width; c += lanes * n) {
      const std::int64_t n_left = of.width - c;
      const auto of_token = load<n, is_whole>(dy + v / of.top_k * of.width + c, n_left);
      const auto of_row = load<n, is_whole>(x + row * of.width + c, n_left);
      Pack<T, n> scaled;
      for (int i = 0; i < n; ++i) {
        dot += to_float(of_token.at[i]) * to_float(of_row.at[i]);
        scaled.at[i] = round_to<T>(weights[v] * to_float(of_token.at[i]));
      }
      store<is_whole>(scaled, dx + row * of.width + c, n_left);
    }
    dot = warp_sum(dot);
    if (lane_of_warp() == 0) dweights[v] = dot;
  }
}

Rows rows_of(const RouterShape& shape, const View& x) {
  return {shape.n_tokens, shape.top_k, x.shape()[1]};
}

}  // namespace

void group_rows(cudaStream_t stream, const RouterShape& shape, const Routing& routing, View x,
                MutView y) {
  const std::int64_t row_bytes = x.shape()[1] * static_cast<std::int64_t>(size_of(x.dtype()));
  with_unit_of(row_bytes, {x.data(), y.data()}, [&](auto unit) {
    using Unit = decltype(unit);
    launch(stream, warps_grid(shape.n_rows()), group_kernel<Unit>, shape.top_k,
           routing.visits.as<std::int32_t>(), routing.begins.as<std::int32_t>() + shape.n_own(),
           row_bytes / static_cast<std::int64_t>(sizeof(Unit)), static_cast<const Unit*>(x.data()),
           static_cast<Unit*>(y.data()));
  });
}

void combine_rows(cudaStream_t stream, const RouterShape& shape, const Routing& routing,
                  Weigh weigh, View x, MutView y) {
  const Rows of = rows_of(shape, x);
  const float* const weights = weigh == Weigh::yes ? routing.weights.as<float>() : nullptr;
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<T>(of.width, {x.data(), y.data()}, [&](auto is_whole) {
      launch(stream, warps_grid(of.n_tokens), combine_kernel<T, is_whole()>, of,
             routing.rows.as<std::int32_t>(), weights, x.as<T>(), y.as<T>());
    });
  });
}

void combine_rows_backward(cudaStream_t stream, const RouterShape& shape, const Routing& routing,
                           View x, View dy, MutView dx, MutView dweights) {
  const Rows of = rows_of(shape, x);
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<T>(of.width, {x.data(), dy.data(), dx.data()}, [&](auto is_whole) {
      launch(stream, warps_grid(of.n_tokens * of.top_k), combine_backward_kernel<T, is_whole()>, of,
             routing.rows.as<std::int32_t>(), routing.weights.as<float>(), x.as<T>(), dy.as<T>(),
             dx.as<T>(), dweights.as<float>());
    });
  });
}

}  // namespace llm::cuda
