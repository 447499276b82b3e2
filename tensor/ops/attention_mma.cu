#include <cmath>
#include <cstdint>

#include "tensor/cuda/attention_tiles.h"

namespace llm::cuda {
namespace {

constexpr float ln_2 = 0.693147181f;

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

template <typename T, int D, bool drops>
__global__ void __launch_bounds__(tile_threads)
    forward_kernel(AttentionCall call, const T* qkv, T* out, float* log_sum_exp) {
  const int seq_len = static_cast<int>(call.shape.seq_len);
  const Thread thread;
  const TilePlace place = tile_of_block(call.shape, call.shape.n_heads, true);
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

/// The launches of one kind of kernels.
template <typename T, int D, bool drops>
struct Kernels {
  static void forward(cudaStream_t stream, const AttentionCall& call, View qkv, MutView out,
                      MutView log_sum_exp) {
    launch(stream, tiles_grid(call.shape, call.shape.n_heads, tiles_bytes<D>(3)),
           forward_kernel<T, D, drops>, call, qkv.as<T>(), out.as<T>(), log_sum_exp.as<float>());
  }
};

}  // namespace

void attention_forward_mma(cudaStream_t stream, AttentionShape shape, View qkv,
                           const Dropout& dropout, MutView out, MutView log_sum_exp) {
  check_views(shape, {qkv, out});
  const AttentionCall call(shape, dropout);
  with_kernels<Kernels>(call, qkv.dtype(), [&](auto kernels) {
    kernels.forward(stream, call, qkv, out, log_sum_exp);
  });
}

}  // namespace llm::cuda
