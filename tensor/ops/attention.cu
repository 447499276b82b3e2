#include "tensor/ops/attention.h"

#include "tensor/cuda/attention_call.h"
#include "tensor/cuda/attention_mma.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/rope.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

// The plain kernels: a block has one row of one head, a thread an element of it, and scores exist
// one at a time. Sums over positions go in order.
namespace llm::cuda {
namespace {

using Call = AttentionCall;

__device__ float factor(const Call& call, std::int64_t sample, std::int64_t head, std::int64_t t,
                        std::int64_t u) {
  return call.dropout.p == 0 ? 1 : call.factor(call.dropout.key(sample), head, t, u);
}

/// What a block of a grid over samples, heads and positions has.
struct Place {
  std::int64_t sample;
  std::int64_t head;
  std::int64_t position;
};
__device__ Place place_of(const AttentionShape& shape, std::int64_t n_heads) {
  return {blockIdx.x / (shape.seq_len * n_heads), blockIdx.x / shape.seq_len % n_heads,
          blockIdx.x % shape.seq_len};
}

/// Element threadIdx.x of a head, 0 beyond it.
template <typename T>
__device__ float element(const Call& call, const T* x, std::int64_t begin) {
  return threadIdx.x < call.shape.head_dim ? to_float(x[begin + threadIdx.x]) : 0;
}

template <typename T>
__global__ void forward_kernel(Call call, const T* qkv, T* out, float* log_sum_exp) {
  auto* const partials = shared<float>();
  const AttentionShape& s = call.shape;
  const auto [sample, head, t] = place_of(s, s.n_heads);
  const std::int64_t kv_head = head / call.group();
  const float query = element(call, qkv, call.in_qkv(call.token(sample, t), 0, head));
  float largest = -INFINITY;
  float sum = 0;
  float mixed = 0;
  for (std::int64_t u = 0; u <= t; ++u) {
    const std::int64_t token = call.token(sample, u);
    const float key = element(call, qkv, call.in_qkv(token, 1, kv_head));
    const float score = call.scale * block_sum(query * key, partials);
    const float now_largest = fmaxf(largest, score);
    const float kept = expf(largest - now_largest);
    const float p = expf(score - now_largest);
    const float value = element(call, qkv, call.in_qkv(token, 2, kv_head));
    sum = sum * kept + p;
    mixed = mixed * kept + factor(call, sample, head, t, u) * p * value;
    largest = now_largest;
  }
  if (threadIdx.x < s.head_dim) {
    out[call.in_out(call.token(sample, t), head) + threadIdx.x] = round_to<T>(mixed / sum);
  }
  if (threadIdx.x == 0) log_sum_exp[call.in_sums(sample, head, t)] = largest + logf(sum);
}

/// What the backward needs of the pair (t, u) of a head: the softmax after dropout, and the
/// gradient of the score times its scale.
struct Pair {
  float weight;
  float dscore;
};

template <typename T>
struct Tensors {
  const T* qkv;
  const T* out;
  const float* log_sum_exp;
  const T* dout;
};

template <typename T>
__device__ Pair pair_at(const Call& call, const Tensors<T>& x, std::int64_t sample,
                        std::int64_t head, std::int64_t t, std::int64_t u, float* partials) {
  const std::int64_t kv_head = head / call.group();
  const std::int64_t row = call.token(sample, t);
  const std::int64_t column = call.token(sample, u);
  const float query = element(call, x.qkv, call.in_qkv(row, 0, head));
  const float key = element(call, x.qkv, call.in_qkv(column, 1, kv_head));
  const float value = element(call, x.qkv, call.in_qkv(column, 2, kv_head));
  const float dout = element(call, x.dout, call.in_out(row, head));
  const float out = element(call, x.out, call.in_out(row, head));
  const float score = call.scale * block_sum(query * key, partials);
  const float dout_value = block_sum(dout * value, partials);
  const float dout_out = block_sum(dout * out, partials);
  const float p = expf(score - x.log_sum_exp[call.in_sums(sample, head, t)]);
  const float kept = factor(call, sample, head, t, u);
  return {kept * p, call.scale * p * (kept * dout_value - dout_out)};
}

template <typename T>
__global__ void query_kernel(Call call, const T* qkv, const T* out, const float* log_sum_exp,
                             const T* dout, T* dqkv) {
  auto* const partials = shared<float>();
  const Tensors<T> x{qkv, out, log_sum_exp, dout};
  const AttentionShape& s = call.shape;
  const auto [sample, head, t] = place_of(s, s.n_heads);
  float sum = 0;
  for (std::int64_t u = 0; u <= t; ++u) {
    const Pair pair = pair_at(call, x, sample, head, t, u, partials);
    const std::int64_t key = call.in_qkv(call.token(sample, u), 1, head / call.group());
    sum += pair.dscore * element(call, qkv, key);
  }
  if (threadIdx.x >= s.head_dim) return;
  dqkv[call.in_qkv(call.token(sample, t), 0, head) + threadIdx.x] = round_to<T>(sum);
}

template <typename T>
__global__ void key_kernel(Call call, const T* qkv, const T* out, const float* log_sum_exp,
                           const T* dout, T* dqkv) {
  auto* const partials = shared<float>();
  const Tensors<T> x{qkv, out, log_sum_exp, dout};
  const AttentionShape& s = call.shape;
  const auto [sample, kv_head, u] = place_of(s, s.n_kv_heads);
  float dkey = 0;
  float dvalue = 0;
  for (std::int64_t head = kv_head * call.group(); head < (kv_head + 1) * call.group(); ++head) {
    for (std::int64_t t = u; t < s.seq_len; ++t) {
      const Pair pair = pair_at(call, x, sample, head, t, u, partials);
      const std::int64_t row = call.token(sample, t);
      dkey += pair.dscore * element(call, qkv, call.in_qkv(row, 0, head));
      dvalue += pair.weight * element(call, dout, call.in_out(row, head));
    }
  }
  if (threadIdx.x >= s.head_dim) return;
  const std::int64_t token = call.token(sample, u);
  dqkv[call.in_qkv(token, 1, kv_head) + threadIdx.x] = round_to<T>(dkey);
  dqkv[call.in_qkv(token, 2, kv_head) + threadIdx.x] = round_to<T>(dvalue);
}

/// Queries and keys in place: a thread has a pair of elements.
template <typename T>
__global__ void rope_kernel(AttentionShape shape, float theta, float direction, T* qkv) {
  const std::int64_t half = shape.head_dim / 2;
  const std::int64_t per_token = (shape.n_heads + shape.n_kv_heads) * half;
  const std::int64_t n = shape.n_tokens() * per_token;
  for (std::int64_t index = first_element(); index < n; index += element_stride()) {
    const std::int64_t token = index / per_token;
    const std::int64_t head = index % per_token / half;
    turn_pair(qkv + token * shape.qkv_width() + head * shape.head_dim, index % half, half, theta,
              token % shape.seq_len, direction);
  }
}

Grid heads_grid(const AttentionShape& shape, std::int64_t n_heads) {
  const auto n_warps = static_cast<unsigned>((shape.head_dim + lanes - 1) / lanes);
  return {shape.n_tokens() * n_heads, n_warps * lanes,
          static_cast<unsigned>(n_warps * sizeof(float))};
}

}  // namespace

void rope(cudaStream_t stream, AttentionShape shape, float theta, bool is_backward, MutView qkv) {
  const std::int64_t n = qkv.n_elements() / 2;
  with_type_of(qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(n), rope_kernel<T>, shape, theta, is_backward ? -1.0f : 1.0f,
           qkv.as<T>());
  });
}

void attention_forward(cudaStream_t stream, AttentionShape shape, View qkv, const Dropout& dropout,
                       MutView out, MutView log_sum_exp) {
  if (has_attention_mma(capability(), qkv.dtype(), shape.head_dim)) {
    return attention_forward_mma(stream, shape, qkv, dropout, out, log_sum_exp);
  }
  with_type_of(qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, heads_grid(shape, shape.n_heads), forward_kernel<T>, Call(shape, dropout),
           qkv.as<T>(), out.as<T>(), log_sum_exp.as<float>());
  });
}

void attention_backward(cudaStream_t stream, AttentionShape shape, View qkv, View out,
                        View log_sum_exp, View dout, const Dropout& dropout, MutView dqkv) {
  if (has_attention_mma(capability(), qkv.dtype(), shape.head_dim)) {
    return attention_backward_mma(stream, shape, qkv, out, log_sum_exp, dout, dropout, dqkv);
  }
  const Call call(shape, dropout);
  with_type_of(qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, heads_grid(shape, shape.n_heads), query_kernel<T>, call, qkv.as<T>(),
           out.as<T>(), log_sum_exp.as<float>(), dout.as<T>(), dqkv.as<T>());
    launch(stream, heads_grid(shape, shape.n_kv_heads), key_kernel<T>, call, qkv.as<T>(),
           out.as<T>(), log_sum_exp.as<float>(), dout.as<T>(), dqkv.as<T>());
  });
}

}  // namespace llm::cuda
