#include <cmath>
#include <cstdint>

#include "tensor/cuda/attention_tiles.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// A number among elements of T.
struct __attribute__((may_alias)) Number {
  float x;
};

/// The dot product of dout and out of each row of each head, a warp has one. It waits in the first
/// elements of the row's dquery, which query_kernel reads last.
template <typename T>
__global__ void __launch_bounds__(tile_threads)
    dots_kernel(AttentionCall call, const T* out, const T* dout, T* dqkv) {
  const std::int64_t row =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / lanes;
  const AttentionShape& s = call.shape;
  if (row >= s.n_tokens() * s.n_heads) return;
  const auto* const outs = reinterpret_cast<const Word*>(out + row * s.head_dim);
  const auto* const douts = reinterpret_cast<const Word*>(dout + row * s.head_dim);
  float sum = 0;
  for (std::int64_t i = threadIdx.x % lanes; i < s.head_dim / 2; i += lanes) {
    sum += low_of<T>(outs[i].x) * low_of<T>(douts[i].x);
    sum += high_of<T>(outs[i].x) * high_of<T>(douts[i].x);
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
                                   const T* dqkv, const TilePlace& place, int query) {
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
                            const AttentionCall& call, const TilePlace& keys,
                            const TilePlace& queries, const QueryNumbers* numbers,
                            const Mask<drops>& mask) {
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
__global__ void __launch_bounds__(tile_threads, least_blocks)
    key_kernel(AttentionCall call, const T* qkv, const float* log_sum_exp, const T* dout, T* dqkv) {
  const int seq_len = static_cast<int>(call.shape.seq_len);
  const TilePlace place = tile_of_block(call.shape, call.shape.n_kv_heads, false);
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
      const TilePlace queries{place.sample, head, tile, tile * tile_rows};
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
__device__ void add_keys(SumTile (&dquery)[D / 8], const AttentionCall& call,
                         const TilePlace& queries, int first_key, const QueryNumbers (&numbers)[2],
                         const Mask<drops>& mask) {
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
__global__ void __launch_bounds__(tile_threads, least_blocks)
    query_kernel(AttentionCall call, const T* qkv, const float* log_sum_exp, const T* dout,
                 T* dqkv) {
  const int seq_len = static_cast<int>(call.shape.seq_len);
  const Thread thread;
  const TilePlace place = tile_of_block(call.shape, call.shape.n_heads, true);
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

/// The launches of one kind of kernels.
template <typename T, int D, bool drops>
struct Kernels {
  static void backward(cudaStream_t stream, const AttentionCall& call, View qkv, View out,
                       View log_sum_exp, View dout, MutView dqkv) {
    const AttentionShape& shape = call.shape;
    constexpr std::int64_t rows_of_block = tile_threads / lanes;
    const std::int64_t n_rows = shape.n_tokens() * shape.n_heads;
    launch(stream, Grid{(n_rows + rows_of_block - 1) / rows_of_block, tile_threads}, dots_kernel<T>,
           call, out.as<T>(), dout.as<T>(), dqkv.as<T>());
    constexpr unsigned numbers_bytes = tile_rows * sizeof(QueryNumbers);
    launch(stream, tiles_grid(shape, shape.n_kv_heads, tiles_bytes<D>(4) + numbers_bytes),
           key_kernel<T, D, drops>, call, qkv.as<T>(), log_sum_exp.as<float>(), dout.as<T>(),
           dqkv.as<T>());
    launch(stream, tiles_grid(shape, shape.n_heads, tiles_bytes<D>(4)), query_kernel<T, D, drops>,
           call, qkv.as<T>(), log_sum_exp.as<float>(), dout.as<T>(), dqkv.as<T>());
  }
};

}  // namespace

void attention_backward_mma(cudaStream_t stream, AttentionShape shape, View qkv, View out,
                            View log_sum_exp, View dout, const Dropout& dropout, MutView dqkv) {
  check_views(shape, {qkv, out, dout, dqkv});
  const AttentionCall call(shape, dropout);
  with_kernels<Kernels>(call, qkv.dtype(), [&](auto kernels) {
    kernels.backward(stream, call, qkv, out, log_sum_exp, dout, dqkv);
  });
}

}  // namespace llm::cuda
