#include <utility>

#include "tensor/cuda/counting_sort.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
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

/// A block takes a token.
template <typename T, bool is_whole>
__global__ void forward_kernel(Lookup of, const std::int32_t* tokens, const T* table,
                               const T* positions, T* y) {
  constexpr int n = pack_size<T>;
  for (std::int64_t t = blockIdx.x; t < of.n; t += gridDim.x) {
    const std::int64_t row = of.part.row_of(tokens[t]);
    for (std::int64_t c = threadIdx.x * n; c < of.width; c += blockDim.x * n) {
      const std::int64_t n_left = of.width - c;
      Pack<T, n> value{};
      if (row >= 0) value = load<n, is_whole>(table + row * of.width + c, n_left);
      if (positions != nullptr) {
        const auto position = load<n, is_whole>(positions + t % of.seq_len * of.width + c, n_left);
        for (int i = 0; i < n; ++i) {
          value.at[i] = round_to<T>(to_float(value.at[i]) + to_float(position.at[i]));
        }
      }
      store<is_whole>(value, y + t * of.width + c, n_left);
    }
  }
}

template <typename T, bool is_whole>
__global__ void add_positions_kernel(const T* positions, std::int64_t seq_len,
                                     std::int64_t first_row, std::int64_t n_rows,
                                     std::int64_t width, T* y) {
  constexpr int n = pack_size<T>;
  for (std::int64_t r = blockIdx.x; r < n_rows; r += gridDim.x) {
    const T* const position = positions + (first_row + r) % seq_len * width;
    T* const row = y + r * width;
    for (std::int64_t c = threadIdx.x * n; c < width; c += blockDim.x * n) {
      auto sum = load<n, is_whole>(row + c, width - c);
      const auto added = load<n, is_whole>(position + c, width - c);
      for (int i = 0; i < n; ++i) {
        sum.at[i] = round_to<T>(to_float(sum.at[i]) + to_float(added.at[i]));
      }
      store<is_whole>(sum, row + c, width - c);
    }
  }
}

// The gradient of the table: tokens are sorted by their row of it, by some bits of it after the
// other, and then each row adds its tokens in order. No two threads write one place.

constexpr int digit_bits = 8;
constexpr std::int64_t n_digits = 1 << digit_bits;

/// The row of each token, or n_rows of other ranks' tokens.
__global__ void rows_kernel(Lookup of, const std::int32_t* tokens, std::int32_t* rows,
                            std::int32_t* order) {
  for (std::int64_t i = first_element(); i < of.n; i += element_stride()) {
    const std::int64_t row = of.part.row_of(tokens[i]);
    rows[i] = static_cast<std::int32_t>(row < 0 ? of.part.n_rows : row);
    order[i] = static_cast<std::int32_t>(i);
  }
}

__device__ std::int32_t digit_of(std::int32_t row, int shift) {
  return row >> shift & (n_digits - 1);
}

__global__ void count_kernel(Chunks chunks, int shift, const std::int32_t* rows,
                             std::int32_t* counts) {
  const Chunk chunk = load_chunk(chunks, [&](std::int64_t i) { return digit_of(rows[i], shift); });
  count_keys(chunk, n_digits, chunks.n, counts);
}

__global__ void sort_kernel(Chunks chunks, int shift, const std::int32_t* begins,
                            const std::int32_t* digit_begins, const std::int32_t* rows,
                            const std::int32_t* order, std::int32_t* sorted_rows,
                            std::int32_t* sorted_order) {
  const Chunk chunk = load_chunk(chunks, [&](std::int64_t i) { return digit_of(rows[i], shift); });
  for (std::int64_t digit = threadIdx.x; digit < n_digits; digit += blockDim.x) {
    const std::int32_t begin = digit_begins[digit] + begins[digit * chunks.n + blockIdx.x];
    place_items(chunk, digit, begin, [&](std::int64_t i, std::int32_t place) {
      sorted_rows[place] = rows[i];
      sorted_order[place] = order[i];
    });
  }
}

/// The end of those that are rows[first].
__device__ std::int64_t end_of(const std::int32_t* rows, std::int64_t first, std::int64_t n) {
  std::int64_t low = first + 1;
  std::int64_t high = n;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (rows[middle] == rows[first]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// A lane adds rows order[first], order[first + stride], ... of dy to some columns of a table's
/// row.
template <bool is_whole, typename T, typename RowOf>
__device__ void add_rows(const Lookup& of, std::int64_t first_column, std::int64_t n_rows,
                         const RowOf& row_of, const T* dy, float* to) {
  constexpr int n = pack_size<T>;
  const std::int64_t c = first_column + lane_of_warp() * n;
  if (c >= of.width) return;
  const std::int64_t n_left = of.width - c;
  Pack<float, n> sums = load<n, is_whole>(to + c, n_left);
  for (std::int64_t k = 0; k < n_rows; ++k) {
    const auto grad = load<n, is_whole>(dy + row_of(k) * of.width + c, n_left);
    for (int i = 0; i < n; ++i) sums.at[i] += to_float(grad.at[i]);
  }
  store<is_whole>(sums, to + c, n_left);
}

template <typename T>
__host__ __device__ std::int64_t n_column_tiles(const Lookup& of) {
  constexpr std::int64_t tile = pack_size<T> * lanes;
  return (of.width + tile - 1) / tile;
}

/// A warp has a tile of a row's columns, if it finds the first of the row's tokens.
template <typename T, bool is_whole>
__global__ void table_kernel(Lookup of, const std::int32_t* rows, const std::int32_t* order,
                             const T* dy, float* dtable) {
  const std::int64_t n_tiles = n_column_tiles<T>(of);
  for (std::int64_t w = first_warp(); w < of.n * n_tiles; w += warp_stride()) {
    const std::int64_t first = w / n_tiles;
    const std::int64_t row = rows[first];
    if (row == of.part.n_rows || (first > 0 && rows[first - 1] == row)) continue;
    add_rows<is_whole>(
        of, w % n_tiles * pack_size<T> * lanes, end_of(rows, first, of.n) - first,
        [&](std::int64_t k) { return static_cast<std::int64_t>(order[first + k]); }, dy,
        dtable + row * of.width);
  }
}

template <typename T, bool is_whole>
__global__ void positions_kernel(Lookup of, const T* dy, float* dpositions) {
  const std::int64_t n_tiles = n_column_tiles<T>(of);
  for (std::int64_t w = first_warp(); w < of.seq_len * n_tiles; w += warp_stride()) {
    const std::int64_t t = w / n_tiles;
    add_rows<is_whole>(
        of, w % n_tiles * pack_size<T> * lanes, of.n / of.seq_len,
        [&](std::int64_t k) { return k * of.seq_len + t; }, dy, dpositions + t * of.width);
  }
}

/// Tokens by their rows of the table, and within one in order.
class SortedTokens {
 public:
  SortedTokens(cudaStream_t stream, const Lookup& of, const std::int32_t* tokens)
      : chunks_(1, of.n),
        scratch_(
            static_cast<std::size_t>(4 * of.n + n_digits * (chunks_.n + 2)) * sizeof(std::int32_t),
            stream) {
    rows = scratch_.as<std::int32_t>();
    order = rows + of.n;
    std::int32_t* other_rows = order + of.n;
    std::int32_t* other_order = other_rows + of.n;
    std::int32_t* const counts = other_order + of.n;
    std::int32_t* const digit_begins = counts + n_digits * chunks_.n;
    launch(stream, grid_of(of.n), rows_kernel, of, tokens, rows, order);
    for (int shift = 0; of.part.n_rows >> shift > 0; shift += digit_bits) {
      launch(stream, chunks_.grid(), count_kernel, chunks_, shift, rows, counts);
      sums_before(stream, n_digits, chunks_.n, counts, digit_begins);
      sums_before(stream, 1, n_digits, digit_begins, digit_begins + n_digits);
      launch(stream, chunks_.grid(), sort_kernel, chunks_, shift, counts, digit_begins, rows, order,
             other_rows, other_order);
      std::swap(rows, other_rows);
      std::swap(order, other_order);
    }
  }

  std::int32_t* rows;
  std::int32_t* order;

 private:
  Chunks chunks_;
  Scratch scratch_;
};

Part part_of(const TablePart& part, std::int64_t n_own) {
  return {part.n_rows == 0 ? 0 : part.first_row, n_own};
}

}  // namespace

void embedding_forward(cudaStream_t stream, View tokens, View table, View positions,
                       std::int64_t seq_len, MutView y, TablePart part) {
  const Lookup of{tokens.n_elements(), seq_len, y.shape()[1], part_of(part, table.shape()[0])};
  with_type_of(y.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<T>(of.width, {table.data(), positions.data(), y.data()}, [&](auto is_whole) {
      launch(stream, packed_rows_grid(of.n, of.width, pack_size<T>), forward_kernel<T, is_whole()>,
             of, tokens.as<std::int32_t>(), table.as<T>(), static_cast<const T*>(positions.data()),
             y.as<T>());
    });
  });
}

void add_positions(cudaStream_t stream, View positions, std::int64_t seq_len,
                   std::int64_t first_row, MutView y) {
  const std::int64_t n = y.shape()[0];
  const std::int64_t width = y.shape()[1];
  with_type_of(y.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<T>(width, {positions.data(), y.data()}, [&](auto is_whole) {
      launch(stream, packed_rows_grid(n, width, pack_size<T>), add_positions_kernel<T, is_whole()>,
             positions.as<T>(), seq_len, first_row, n, width, y.as<T>());
    });
  });
}

void embedding_backward(cudaStream_t stream, View tokens, View dy, std::int64_t seq_len,
                        MutView dtable, MutView dpositions, TablePart part) {
  const std::int64_t n_own = dtable.empty() ? 0 : dtable.shape()[0];
  const Lookup of{tokens.n_elements(), seq_len, dy.shape()[1], part_of(part, n_own)};
  if (of.n == 0) return;
  with_type_of(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<T>(of.width, {dy.data(), dtable.data(), dpositions.data()}, [&](auto is_whole) {
      if (!dtable.empty()) {
        const SortedTokens sorted(stream, of, tokens.as<std::int32_t>());
        launch(stream, warps_grid(of.n * n_column_tiles<T>(of)), table_kernel<T, is_whole()>, of,
               sorted.rows, sorted.order, dy.as<T>(), dtable.as<float>());
      }
      if (dpositions.empty()) return;
      launch(stream, warps_grid(seq_len * n_column_tiles<T>(of)), positions_kernel<T, is_whole()>,
             of, dy.as<T>(), dpositions.as<float>());
    });
  });
}

}  // namespace llm::cuda
