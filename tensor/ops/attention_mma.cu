#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "tensor/cuda/attention_call.h"
#include "tensor/cuda/attention_mma.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/mma.h"
#include "tensor/ops/rounding.h"

// Attention in tiles (Dao 2023, "FlashAttention-2"): a block has 64 queries or 64 keys of one head,
// a warp 16 of them, and goes over the other tiles in order; tiles above the diagonal are skipped.
// Scores and their gradients exist in registers, 16 rows of them at a time. Exponents are of 2.
namespace llm::cuda {
namespace {

constexpr int tile_rows = 64;
constexpr int warp_rows = 16;
constexpr unsigned n_threads = tile_rows / warp_rows * lanes;
constexpr unsigned least_blocks = 2;  // on a multiprocessor: up to 255 registers a thread
constexpr float log2_e = 1.44269504f;
constexpr float ln_2 = 0.693147181f;

/// What is moved at once, whatever the elements are.
struct __attribute__((may_alias, aligned(16))) Words {
  std::uint32_t x[4];
};
struct __attribute__((may_alias)) Word {
  std::uint32_t x;
};
struct __attribute__((may_alias)) Number {
  float x;
};

template <int D, typename T>
__device__ SharedTile<T> shared_tile(int index) {
  constexpr int pitch = D + 8;
  return {shared<T>() + index * tile_rows * pitch, pitch};
}
template <int D>
constexpr unsigned tiles_bytes(unsigned n_tiles) {
  return n_tiles * tile_rows * (D + 8) * sizeof(std::uint16_t);
}

/// A head's rows in global memory: where position 0's begins, and from one to the next.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;
  __device__ T* at(int position) const { return data + position * stride; }
};

template <typename T>
__device__ Rows<T> rows_of_qkv(const AttentionCall& call, T* qkv, std::int64_t sample, int part,
                               std::int64_t head) {
  return {qkv + call.in_qkv(call.token(sample, 0), part, head), call.shape.qkv_width()};
}
template <typename T>
__device__ Rows<T> rows_of_out(const AttentionCall& call, T* out, std::int64_t sample,
                               std::int64_t head) {
  return {out + call.in_out(call.token(sample, 0), head), call.shape.n_heads * call.shape.head_dim};
}

/// 64 positions from `first` on; zeros from seq_len on.
template <int D, typename T>
__device__ void load_rows(const Rows<const T>& from, int first, int seq_len,
                          const SharedTile<T>& to) {
  constexpr int words = 16 / sizeof(T);
  for (int i = static_cast<int>(threadIdx.x); i < tile_rows * D / words; i += n_threads) {
    const int row = i / (D / words);
    const int column = i % (D / words) * words;
    Words x{};
    if (first + row < seq_len) {
      x = *reinterpret_cast<const Words*>(from.at(first + row) + column);
    }
    *reinterpret_cast<Words*>(to.at(row, column)) = x;
  }
}

/// What a thread is in its block.
struct Thread {
  __device__ Thread()
      : lane(static_cast<int>(threadIdx.x % lanes)),
        row(static_cast<int>(threadIdx.x / lanes) * warp_rows) {}
  int lane;
  int row;  ///< its warp's first, in the block's tile
  /// Of element i of a tile of sums in the warp's rows.
  __device__ int row_of(int i) const { return row + row_in_sums(lane, i); }
  __device__ int column_of(int tile, int i) const { return 8 * tile + column_in_sums(lane, i); }
};

/// The warp's 16 rows, each times a factor, to positions from `first` on.
template <int D, typename T>
__device__ void store_rows(const SumTile (&sums)[D / 8], const float (&factors)[2], int first,
                           int seq_len, const Rows<T>& to) {
  const Thread thread;
  LLM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int position = first + thread.row_of(2 * half);
    if (position >= seq_len) continue;
    LLM_UNROLL
    for (int j = 0; j < D / 8; ++j) {
      const float* const x = sums[j].x + 2 * half;
      const Word pair{pack<T>(x[0] * factors[half], x[1] * factors[half])};
      *reinterpret_cast<Word*>(to.at(position) + thread.column_of(j, 0)) = pair;
    }
  }
}

/// sums (16 x 8 n) += the warp's rows of `left` times rows [first, first + 8 n) of `right`.
template <int D, int n, typename T>
__device__ void add_dots(SumTile (&sums)[n], const SharedTile<T>& left, const SharedTile<T>& right,
                         int first) {
  const Thread thread;
  LLM_UNROLL
  for (int k = 0; k < D; k += 16) {
    const LeftTile rows = left_at(left, thread.row, k);
    LLM_UNROLL
    for (int j = 0; j < n; j += 2) {
      const RightPair columns = right_of_rows(right, first + 8 * j, k);
      multiply<T>(sums[j], rows, columns.first);
      multiply<T>(sums[j + 1], rows, columns.second);
    }
  }
}

/// sums (16 x D) += weights (16 x 8 n), rounded to T, times rows [first, first + 8 n) of `right`.
template <int D, int n, typename T>
__device__ void add_weighted(SumTile (&sums)[D / 8], const SumTile (&weights)[n],
                             const SharedTile<T>& right, int first) {
  LLM_UNROLL
  for (int k = 0; k < n; k += 2) {
    const LeftTile rows = left_of<T>(weights[k], weights[k + 1]);
    LLM_UNROLL
    for (int j = 0; j < D / 8; j += 2) {
      const RightPair columns = right_of_columns(right, first + 8 * k, 8 * j);
      multiply<T>(sums[j], rows, columns.first);
      multiply<T>(sums[j + 1], rows, columns.second);
    }
  }
}

/// What a block has: a tile of positions of a head.
struct Place {
  std::int64_t sample;
  std::int64_t head;
  int tile;
  int first;  ///< position of the tile
};
__device__ int n_tiles_of(const AttentionShape& shape) {
  return (static_cast<int>(shape.seq_len) + tile_rows - 1) / tile_rows;
}
/// Blocks with the most work come first.
__device__ Place place_of(const AttentionShape& shape, std::int64_t n_heads, bool is_of_queries) {
  const std::int64_t n_pairs = shape.batch * n_heads;
  const std::int64_t pair = blockIdx.x % n_pairs;
  const int index = static_cast<int>(blockIdx.x / n_pairs);
  const int tile = is_of_queries ? n_tiles_of(shape) - 1 - index : index;
  return {pair / n_heads, pair % n_heads, tile, tile * tile_rows};
}

/// The maximum, or sum, over the four lanes that share a row; the same bits on each.
__device__ float row_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

/// Of the two rows of a thread: the largest exponent so far, and the sum of its own columns' powers
/// relative to it.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

/// Scores to exponents of 2; keys after the query are masked.
template <int n>
__device__ void to_exponents(SumTile (&scores)[n], float scale, bool is_diagonal) {
  const Thread thread;
  LLM_UNROLL
  for (int j = 0; j < n; ++j) {
    LLM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool is_masked = is_diagonal && thread.column_of(j, i) > thread.row_of(i);
      scores[j].x[i] = is_masked ? -INFINITY : scores[j].x[i] * scale;
    }
  }
}

/// Exponents to powers relative to the largest so far, to which `softmax` and `out` are scaled.
template <int D, int n>
__device__ void to_powers(SumTile (&scores)[n], Softmax& softmax, SumTile (&out)[D / 8]) {
  LLM_UNROLL
  for (int half = 0; half < 2; ++half) {
    float largest = softmax.largest[half];
    LLM_UNROLL
    for (int j = 0; j < n; ++j) {
      largest = fmaxf(largest, fmaxf(scores[j].x[2 * half], scores[j].x[2 * half + 1]));
    }
    largest = row_maximum(largest);
    const float kept = exp2f(softmax.largest[half] - largest);
    float sum = softmax.sum[half] * kept;
    LLM_UNROLL
    for (int j = 0; j < n; ++j) {
      LLM_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[j].x[i] = exp2f(scores[j].x[i] - largest);
        sum += scores[j].x[i];
      }
    }
    LLM_UNROLL
    for (int j = 0; j < D / 8; ++j) {
      out[j].x[2 * half] *= kept;
      out[j].x[2 * half + 1] *= kept;
    }
    softmax.largest[half] = largest;
    softmax.sum[half] = sum;
  }
}

/// What dropout does to the weight of a query and a key.
template <bool drops>
struct Mask {
  __device__ Mask(const AttentionCall& call_, std::int64_t sample, std::int64_t head_)
      : call(call_), key(drops ? call_.dropout.key(sample) : 0), head(head_) {}
  __device__ float at(int query, int position) const {
    if constexpr (drops) return call.factor(key, head, query, position);
    return 1;
  }
  const AttentionCall& call;
  std::uint64_t key;
  std::int64_t head;
};

template <typename T, int D, bool drops>
__global__ void __launch_bounds__(n_threads)
    forward_kernel(AttentionCall call, const T* qkv, T* out, float* log_sum_exp) {
  const int seq_len = static_cast<int>(call.shape.seq_len);
  const Thread thread;
  const Place place = place_of(call.shape, call.shape.n_heads, true);
  const std::int64_t kv_head = place.head / call.group();
  const Rows<const T> keys = rows_of_qkv(call, qkv, place.sample, 1, kv_head);
  const Rows<const T> values = rows_of_qkv(call, qkv, place.sample, 2, kv_head);
  const SharedTile<T> query_tile = shared_tile<D, T>(0);
  const SharedTile<T> key_tile = shared_tile<D, T>(1);
  const SharedTile<T> value_tile = shared_tile<D, T>(2);
  load_rows<D>(rows_of_qkv(call, qkv, place.sample, 0, place.head), place.first, seq_len,
               query_tile);
  const Mask<drops> mask(call, place.sample, place.head);
  Softmax softmax;
  SumTile mixed[D / 8];
  for (int tile = 0; tile <= place.tile; ++tile) {
    __syncthreads();  // all have read the tiles before
    load_rows<D>(keys, tile * tile_rows, seq_len, key_tile);
    load_rows<D>(values, tile * tile_rows, seq_len, value_tile);
    __syncthreads();
    SumTile scores[tile_rows / 8];
    add_dots<D>(scores, query_tile, key_tile, 0);
    to_exponents(scores, call.scale * log2_e, tile == place.tile);
    to_powers<D>(scores, softmax, mixed);
    if constexpr (drops) {
      LLM_UNROLL
      for (int j = 0; j < tile_rows / 8; ++j) {
        LLM_UNROLL
        for (int i = 0; i < 4; ++i) {
          scores[j].x[i] *=
              mask.at(place.first + thread.row_of(i), tile * tile_rows + thread.column_of(j, i));
        }
      }
    }
    add_weighted<D>(mixed, scores, value_tile, 0);
  }
  float factors[2];
  LLM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = row_sum(softmax.sum[half]);
    factors[half] = 1 / sum;
    const int query = place.first + thread.row_of(2 * half);
    if (thread.column_of(0, 0) != 0 || query >= seq_len) continue;
    log_sum_exp[call.in_sums(place.sample, place.head, query)] =
        (softmax.largest[half] + log2f(sum)) * ln_2;
  }
  store_rows<D>(mixed, factors, place.first, seq_len,
                rows_of_out(call, out, place.sample, place.head));
}

/// The dot product of dout and out of each row of each head, a warp has one. It waits in the first
/// elements of the row's dquery, which query_kernel reads last.
template <typename T>
__global__ void __launch_bounds__(n_threads)
    dots_kernel(AttentionCall call, const T* out, const T* dout, T* dqkv) {
  const std::int64_t row =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / lanes;
  const AttentionShape& s = call.shape;
  if (row >= s.n_tokens() * s.n_heads) return;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % lanes; i < s.head_dim; i += lanes) {
    sum += to_float(out[row * s.head_dim + i]) * to_float(dout[row * s.head_dim + i]);
  }
  for (unsigned half = lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(all_lanes, sum, half);
  if (threadIdx.x % lanes != 0) return;
  T* const place = dqkv + call.in_qkv(row / s.n_heads, 0, row % s.n_heads);
  *reinterpret_cast<Number*>(place) = {sum};
}

/// How many of a tile's 64 are at once in registers, beside the sums.
template <int D>
constexpr int chunk_rows = D == 64 ? 32 : 16;

/// Of a query: what its exponents are relative to, and dout out.
struct QueryNumbers {
  float exponent;
  float dot;
};
template <typename T>
__device__ QueryNumbers numbers_of(const AttentionCall& call, const float* log_sum_exp,
                                   const T* dqkv, const Place& place, int query) {
  if (query >= call.shape.seq_len) return {0, 0};
  const std::int64_t token = call.token(place.sample, query);
  return {log_sum_exp[call.in_sums(place.sample, place.head, query)] * log2_e,
          reinterpret_cast<const Number*>(dqkv + call.in_qkv(token, 0, place.head))->x};
}

/// What the pair of a query and a key gives the sums of gradients.
struct Pair {
  float weight;  ///< the softmax after dropout
  float dscore;  ///< over the scale of scores
};
/// From the exponent, the product of dout and the value, and what dropout does.
__device__ Pair pair_of(float exponent, float dout_value, float kept, const QueryNumbers& query) {
  const float p = exp2f(exponent - query.exponent);
  return {kept * p, p * (kept * dout_value - query.dot)};
}

/// What a block of keys does with 64 queries, a chunk at a time.
template <typename T, int D, bool drops>
__device__ void add_queries(SumTile (&dkey)[D / 8], SumTile (&dvalue)[D / 8],
                            const AttentionCall& call, const Place& keys, const Place& queries,
                            const QueryNumbers* numbers, const Mask<drops>& mask) {
  constexpr int n = chunk_rows<D> / 8;
  const Thread thread;
  const SharedTile<T> query_tile = shared_tile<D, T>(2);
  const SharedTile<T> dout_tile = shared_tile<D, T>(3);
  LLM_KEEP_LOOP
  for (int first = 0; first < tile_rows; first += chunk_rows<D>) {
    SumTile weights[n];
    SumTile dscores[n];
    add_dots<D>(weights, shared_tile<D, T>(0), query_tile, first);
    add_dots<D>(dscores, shared_tile<D, T>(1), dout_tile, first);
    LLM_UNROLL
    for (int j = 0; j < n; ++j) {
      LLM_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = first + thread.column_of(j, i);
        const int key = keys.first + thread.row_of(i);
        const int query = queries.first + column;
        const float exponent = key > query ? -INFINITY : weights[j].x[i] * (call.scale * log2_e);
        const Pair pair = pair_of(exponent, dscores[j].x[i], mask.at(query, key), numbers[column]);
        weights[j].x[i] = pair.weight;
        dscores[j].x[i] = pair.dscore;
      }
    }
    add_weighted<D>(dvalue, weights, dout_tile, first);
    add_weighted<D>(dkey, dscores, query_tile, first);
  }
}

/// Query heads that share the key head add in order, each with its tiles of queries in order.
template <typename T, int D, bool drops>
__global__ void __launch_bounds__(n_threads, least_blocks)
    key_kernel(AttentionCall call, const T* qkv, const float* log_sum_exp, const T* dout, T* dqkv) {
  const int seq_len = static_cast<int>(call.shape.seq_len);
  const Place place = place_of(call.shape, call.shape.n_kv_heads, false);
  auto* const numbers = reinterpret_cast<QueryNumbers*>(shared_tile<D, T>(4).data);
  load_rows<D>(rows_of_qkv(call, qkv, place.sample, 1, place.head), place.first, seq_len,
               shared_tile<D, T>(0));
  load_rows<D>(rows_of_qkv(call, qkv, place.sample, 2, place.head), place.first, seq_len,
               shared_tile<D, T>(1));
  SumTile dkey[D / 8];
  SumTile dvalue[D / 8];
  const std::int64_t first_head = place.head * call.group();
  for (std::int64_t head = first_head; head < first_head + call.group(); ++head) {
    const Mask<drops> mask(call, place.sample, head);
    for (int tile = place.tile; tile < n_tiles_of(call.shape); ++tile) {
      const Place queries{place.sample, head, tile, tile * tile_rows};
      __syncthreads();  // all have read the tiles before
      load_rows<D>(rows_of_qkv(call, qkv, place.sample, 0, head), queries.first, seq_len,
                   shared_tile<D, T>(2));
      load_rows<D>(rows_of_out(call, dout, place.sample, head), queries.first, seq_len,
                   shared_tile<D, T>(3));
      if (threadIdx.x < tile_rows) {
        numbers[threadIdx.x] = numbers_of(call, log_sum_exp, dqkv, queries,
                                          queries.first + static_cast<int>(threadIdx.x));
      }
      __syncthreads();
      add_queries<T, D, drops>(dkey, dvalue, call, place, queries, numbers, mask);
    }
  }
  const float scales[2] = {call.scale, call.scale};
  const float ones[2] = {1, 1};
  store_rows<D>(dkey, scales, place.first, seq_len,
                rows_of_qkv(call, dqkv, place.sample, 1, place.head));
  store_rows<D>(dvalue, ones, place.first, seq_len,
                rows_of_qkv(call, dqkv, place.sample, 2, place.head));
}

/// What a block of queries does with 64 keys, a chunk at a time.
template <typename T, int D, bool drops>
__device__ void add_keys(SumTile (&dquery)[D / 8], const AttentionCall& call, const Place& queries,
                         int first_key, const QueryNumbers (&numbers)[2], const Mask<drops>& mask) {
  constexpr int n = chunk_rows<D> / 8;
  const Thread thread;
  const SharedTile<T> key_tile = shared_tile<D, T>(2);
  LLM_KEEP_LOOP
  for (int first = 0; first < tile_rows; first += chunk_rows<D>) {
    SumTile scores[n];
    SumTile dscores[n];
    add_dots<D>(scores, shared_tile<D, T>(0), key_tile, first);
    add_dots<D>(dscores, shared_tile<D, T>(1), shared_tile<D, T>(3), first);
    LLM_UNROLL
    for (int j = 0; j < n; ++j) {
      LLM_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + first + thread.column_of(j, i);
        const int query = queries.first + thread.row_of(i);
        const float exponent = key > query ? -INFINITY : scores[j].x[i] * (call.scale * log2_e);
        dscores[j].x[i] =
            pair_of(exponent, dscores[j].x[i], mask.at(query, key), numbers[i / 2]).dscore;
      }
    }
    add_weighted<D>(dquery, dscores, key_tile, first);
  }
}

template <typename T, int D, bool drops>
__global__ void __launch_bounds__(n_threads, least_blocks)
    query_kernel(AttentionCall call, const T* qkv, const float* log_sum_exp, const T* dout,
                 T* dqkv) {
  const int seq_len = static_cast<int>(call.shape.seq_len);
  const Thread thread;
  const Place place = place_of(call.shape, call.shape.n_heads, true);
  const std::int64_t kv_head = place.head / call.group();
  load_rows<D>(rows_of_qkv(call, qkv, place.sample, 0, place.head), place.first, seq_len,
               shared_tile<D, T>(0));
  load_rows<D>(rows_of_out(call, dout, place.sample, place.head), place.first, seq_len,
               shared_tile<D, T>(1));
  const QueryNumbers numbers[2] = {
      numbers_of(call, log_sum_exp, dqkv, place, place.first + thread.row_of(0)),
      numbers_of(call, log_sum_exp, dqkv, place, place.first + thread.row_of(2))};
  const Mask<drops> mask(call, place.sample, place.head);
  SumTile dquery[D / 8];
  for (int tile = 0; tile <= place.tile; ++tile) {
    __syncthreads();  // all have read the tiles before
    load_rows<D>(rows_of_qkv(call, qkv, place.sample, 1, kv_head), tile * tile_rows, seq_len,
                 shared_tile<D, T>(2));
    load_rows<D>(rows_of_qkv(call, qkv, place.sample, 2, kv_head), tile * tile_rows, seq_len,
                 shared_tile<D, T>(3));
    __syncthreads();
    add_keys<T, D, drops>(dquery, call, place, tile * tile_rows, numbers, mask);
  }
  const float scales[2] = {call.scale, call.scale};
  store_rows<D>(dquery, scales, place.first, seq_len,
                rows_of_qkv(call, dqkv, place.sample, 0, place.head));
}

Grid tiles_grid(const AttentionShape& shape, std::int64_t n_heads, unsigned shared_bytes) {
  const std::int64_t n_tiles = (shape.seq_len + tile_rows - 1) / tile_rows;
  return {n_tiles * shape.batch * n_heads, n_threads, shared_bytes};
}

/// The launches of one kind of kernels.
template <typename T, int D, bool drops>
struct Kernels {
  static void forward(cudaStream_t stream, const AttentionCall& call, View qkv, MutView out,
                      MutView log_sum_exp) {
    launch(stream, tiles_grid(call.shape, call.shape.n_heads, tiles_bytes<D>(3)),
           forward_kernel<T, D, drops>, call, qkv.as<T>(), out.as<T>(), log_sum_exp.as<float>());
  }
  static void backward(cudaStream_t stream, const AttentionCall& call, View qkv, View out,
                       View log_sum_exp, View dout, MutView dqkv) {
    const AttentionShape& shape = call.shape;
    constexpr std::int64_t rows_of_block = n_threads / lanes;
    const std::int64_t n_rows = shape.n_tokens() * shape.n_heads;
    launch(stream, Grid{(n_rows + rows_of_block - 1) / rows_of_block, n_threads}, dots_kernel<T>,
           call, out.as<T>(), dout.as<T>(), dqkv.as<T>());
    constexpr unsigned numbers_bytes = tile_rows * sizeof(QueryNumbers);
    launch(stream, tiles_grid(shape, shape.n_kv_heads, tiles_bytes<D>(4) + numbers_bytes),
           key_kernel<T, D, drops>, call, qkv.as<T>(), log_sum_exp.as<float>(), dout.as<T>(),
           dqkv.as<T>());
    launch(stream, tiles_grid(shape, shape.n_heads, tiles_bytes<D>(4)), query_kernel<T, D, drops>,
           call, qkv.as<T>(), log_sum_exp.as<float>(), dout.as<T>(), dqkv.as<T>());
  }
};

/// run(Kernels<...>()) with those of a call.
template <typename T, int D, typename Run>
void with_kernels(const AttentionCall& call, const Run& run) {
  if (call.dropout.p == 0) {
    run(Kernels<T, D, false>());
  } else {
    run(Kernels<T, D, true>());
  }
}
template <typename Run>
void with_kernels(const AttentionCall& call, Dtype dtype, const Run& run) {
  const bool is_wide = call.shape.head_dim == 128;
  if (dtype == Dtype::bf16) {
    is_wide ? with_kernels<Bf16, 128>(call, run) : with_kernels<Bf16, 64>(call, run);
  } else {
    is_wide ? with_kernels<F16, 128>(call, run) : with_kernels<F16, 64>(call, run);
  }
}

void check_views(const AttentionShape& shape, std::initializer_list<View> views) {
  CHECK_CONTRACT(has_attention_mma(80, views.begin()->dtype(), shape.head_dim),
                 "tensor cores have attention of bf16 and f16, of heads 64 or 128 wide");
  for (const View& view : views) {
    CHECK_CONTRACT(reinterpret_cast<std::uintptr_t>(view.data()) % sizeof(Words) == 0,
                   "a tensor of attention begins at a multiple of 16 bytes");
  }
}

}  // namespace

void attention_forward_mma(cudaStream_t stream, AttentionShape shape, View qkv,
                           const Dropout& dropout, MutView out, MutView log_sum_exp) {
  check_views(shape, {qkv, out});
  const AttentionCall call(shape, dropout);
  with_kernels(call, qkv.dtype(),
               [&](auto kernels) { kernels.forward(stream, call, qkv, out, log_sum_exp); });
}

void attention_backward_mma(cudaStream_t stream, AttentionShape shape, View qkv, View out,
                            View log_sum_exp, View dout, const Dropout& dropout, MutView dqkv) {
  check_views(shape, {qkv, out, dout, dqkv});
  const AttentionCall call(shape, dropout);
  with_kernels(call, qkv.dtype(), [&](auto kernels) {
    kernels.backward(stream, call, qkv, out, log_sum_exp, dout, dqkv);
  });
}

}  // namespace llm::cuda
