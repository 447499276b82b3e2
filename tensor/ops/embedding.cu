#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// Of a table, the rows that this rank has.
struct Part {
  std::int64_t first_row;
  std::int64_t n_rows;
  /// -1: another rank's.
  __device__ std::int64_t row_of(std::int32_t token) const {
    const std::int64_t row = token - first_row;
    return row < 0 || row >= n_rows ? -1 : row;
  }
};

struct Lookup {
  std::int64_t n;
  std::int64_t seq_len;
  std::int64_t width;
  Part part;
};

template <typename T>
__global__ void forward_kernel(Lookup of, const std::int32_t* tokens, const T* table,
                               const T* positions, T* y) {
  for (std::int64_t i = blockIdx.x; i < of.n; i += gridDim.x) {
    const std::int64_t row = of.part.row_of(tokens[i]);
    for (std::int64_t c = threadIdx.x; c < of.width; c += blockDim.x) {
      T value = row < 0 ? round_to<T>(0) : table[row * of.width + c];
      if (positions != nullptr) {
        const T position = positions[i % of.seq_len * of.width + c];
        value = round_to<T>(to_float(value) + to_float(position));
      }
      y[i * of.width + c] = value;
    }
  }
}

template <typename T>
__global__ void add_positions_kernel(const T* positions, std::int64_t seq_len,
                                     std::int64_t first_row, std::int64_t n, std::int64_t width,
                                     T* y) {
  for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const T* const position = positions + (first_row + i) % seq_len * width;
    T* const row = y + i * width;
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
      row[c] = round_to<T>(to_float(row[c]) + to_float(position[c]));
    }
  }
}

/// A thread has a column, through all tokens in order: one order of sums, and no two threads write
/// one place.
template <typename T>
__global__ void backward_kernel(Lookup of, const std::int32_t* tokens, const T* dy, float* dtable,
                                float* dpositions) {
  for (std::int64_t c = first_element(); c < of.width; c += element_stride()) {
    for (std::int64_t i = 0; i < of.n; ++i) {
      const float grad = to_float(dy[i * of.width + c]);
      const std::int64_t row = of.part.row_of(tokens[i]);
      if (dtable != nullptr && row >= 0) dtable[row * of.width + c] += grad;
      if (dpositions != nullptr) dpositions[i % of.seq_len * of.width + c] += grad;
    }
  }
}

Part part_of(const TablePart& part, std::int64_t n_own) {
  return {part.n_rows == 0 ? 0 : part.first_row, n_own};
}

Grid rows_grid(std::int64_t n_rows) {
  constexpr std::int64_t most_blocks = 65'535;
  return {n_rows < most_blocks ? n_rows : most_blocks};
}

}  // namespace

void embedding_forward(cudaStream_t stream, View tokens, View table, View positions,
                       std::int64_t seq_len, MutView y, TablePart part) {
  const Lookup of{tokens.n_elements(), seq_len, y.shape()[1], part_of(part, table.shape()[0])};
  with_type_of(y.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(of.n), forward_kernel<T>, of, tokens.as<std::int32_t>(), table.as<T>(),
           static_cast<const T*>(positions.data()), y.as<T>());
  });
}

void add_positions(cudaStream_t stream, View positions, std::int64_t seq_len,
                   std::int64_t first_row, MutView y) {
  const std::int64_t n = y.shape()[0];
  with_type_of(y.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(n), add_positions_kernel<T>, positions.as<T>(), seq_len, first_row, n,
           y.shape()[1], y.as<T>());
  });
}

void embedding_backward(cudaStream_t stream, View tokens, View dy, std::int64_t seq_len,
                        MutView dtable, MutView dpositions, TablePart part) {
  const std::int64_t n_own = dtable.empty() ? 0 : dtable.shape()[0];
  const Lookup of{tokens.n_elements(), seq_len, dy.shape()[1], part_of(part, n_own)};
  with_type_of(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(of.width), backward_kernel<T>, of, tokens.as<std::int32_t>(), dy.as<T>(),
           static_cast<float*>(dtable.data()), static_cast<float*>(dpositions.data()));
  });
}

}  // namespace llm::cuda
