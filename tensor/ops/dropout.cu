#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

struct Rows {
  std::int64_t n;
  std::int64_t width;
  std::int64_t per_sample;
};

/// A block takes a row, and of it four elements a thread: one draw of the generator has four. They
/// are a pack where rows are packs of four (is_whole).
template <typename T, bool is_whole>
__global__ void dropout_kernel(Dropout dropout, Rows rows, const T* x, const T* residual, T* out) {
  const float scale = 1 / (1 - dropout.p);
  for (std::int64_t r = blockIdx.x; r < rows.n; r += gridDim.x) {
    const std::int64_t row = dropout.first_row + r;
    const std::uint64_t key = dropout.key(row / rows.per_sample);
    const std::int64_t first = row % rows.per_sample * rows.width;  // element of its sample
    const std::int64_t last = first + rows.width;
    for (std::int64_t four = first / 4 + threadIdx.x; 4 * four < last; four += blockDim.x) {
      const PhiloxBlock draw = philox_at(key, static_cast<std::uint64_t>(four));
      float factors[4];
      for (std::size_t e = 0; e < 4; ++e)
        factors[e] = uniform_from(draw[e]) >= dropout.p ? scale : 0;
      const std::int64_t at = r * rows.width + (4 * four - first);
      if constexpr (is_whole) {
        auto pack = load<4, true>(x + at, 4);
        Pack<T, 4> kept{};
        if (residual != nullptr) kept = load<4, true>(residual + at, 4);
        for (int e = 0; e < 4; ++e) {
          pack.at[e] = round_to<T>(to_float(kept.at[e]) + factors[e] * to_float(pack.at[e]));
        }
        store<true>(pack, out + at, 4);
      } else {
        for (std::int64_t e = 0; e < 4; ++e) {
          if (4 * four + e < first || 4 * four + e >= last) continue;
          const float kept = residual != nullptr ? to_float(residual[at + e]) : 0;
          out[at + e] = round_to<T>(kept + factors[e] * to_float(x[at + e]));
        }
      }
    }
  }
}

}  // namespace

void dropout(cudaStream_t stream, const Dropout& dropout, std::int64_t rows_per_sample, View x,
             View residual, MutView out) {
  const Rows rows{x.shape()[0], x.shape()[1], rows_per_sample};
  const Grid grid = packed_rows_grid(rows.n, rows.width, 4);
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr auto pack_bytes = static_cast<std::int64_t>(4 * sizeof(T));
    const std::int64_t row_bytes = rows.width * static_cast<std::int64_t>(sizeof(T));
    const auto run = [&](auto kernel) {
      launch(stream, grid, kernel, dropout, rows, x.as<T>(), static_cast<const T*>(residual.data()),
             out.as<T>());
    };
    fits(pack_bytes, row_bytes, {x.data(), residual.data(), out.data()})
        ? run(dropout_kernel<T, true>)
        : run(dropout_kernel<T, false>);
  });
}

}  // namespace llm::cuda
