#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

struct Rows {
  std::int64_t n;
  std::int64_t width;
  std::int64_t per_sample;
};

/// A block takes a row, and of it four elements a thread: one draw of the generator has four.
template <typename T>
__global__ void dropout_kernel(Dropout dropout, Rows rows, const T* x, const T* residual, T* out) {
  const float scale = 1 / (1 - dropout.p);
  for (std::int64_t r = blockIdx.x; r < rows.n; r += gridDim.x) {
    const std::int64_t row = dropout.first_row + r;
    const std::uint64_t key = dropout.key(row / rows.per_sample);
    const std::int64_t first = row % rows.per_sample * rows.width;  // element of its sample
    const std::int64_t last = first + rows.width;
    for (std::int64_t four = first / 4 + threadIdx.x; 4 * four < last; four += blockDim.x) {
      const PhiloxBlock draw = philox_at(key, static_cast<std::uint64_t>(four));
      for (std::int64_t e = 4 * four; e < 4 * four + 4; ++e) {
        if (e < first || e >= last) continue;
        const std::int64_t i = r * rows.width + (e - first);
        const float factor =
            uniform_from(draw[static_cast<std::size_t>(e % 4)]) >= dropout.p ? scale : 0;
        const float kept = residual != nullptr ? to_float(residual[i]) : 0;
        out[i] = round_to<T>(kept + factor * to_float(x[i]));
      }
    }
  }
}

}  // namespace

void dropout(cudaStream_t stream, const Dropout& dropout, std::int64_t rows_per_sample, View x,
             View residual, MutView out) {
  const Rows rows{x.shape()[0], x.shape()[1], rows_per_sample};
  constexpr std::int64_t most_blocks = 65'535;
  const Grid grid{rows.n < most_blocks ? rows.n : most_blocks};
  with_type_of(x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid, dropout_kernel<T>, dropout, rows, x.as<T>(),
           static_cast<const T*>(residual.data()), out.as<T>());
  });
}

}  // namespace llm::cuda
