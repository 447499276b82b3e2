#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "tensor/ops/attention.h"

namespace llm::cuda {

/// What the kernels of one call of attention share.
struct AttentionCall {
  AttentionCall(const AttentionShape& shape_, const Dropout& dropout_)
      : shape(shape_),
        dropout(dropout_),
        scale(1 / std::sqrt(static_cast<float>(shape_.head_dim))) {}

  AttentionShape shape;
  Dropout dropout;
  float scale;  ///< 1 / sqrt(head_dim)

  __device__ std::int64_t group() const { return shape.n_heads / shape.n_kv_heads; }
  __device__ std::int64_t token(std::int64_t sample, std::int64_t t) const {
    return sample * shape.seq_len + t;
  }
  /// Where a head's elements of a token begin in qkv; part 0: queries, 1: keys, 2: values.
  __device__ std::int64_t in_qkv(std::int64_t token, int part, std::int64_t head) const {
    const std::int64_t before = part == 0 ? 0 : shape.n_heads + (part - 1) * shape.n_kv_heads;
    return token * shape.qkv_width() + (before + head) * shape.head_dim;
  }
  __device__ std::int64_t in_out(std::int64_t token, std::int64_t head) const {
    return (token * shape.n_heads + head) * shape.head_dim;
  }
  __device__ std::int64_t in_sums(std::int64_t sample, std::int64_t head, std::int64_t t) const {
    return (sample * shape.n_heads + head) * shape.seq_len + t;
  }
  /// What dropout multiplies p[t, u] by, of a sample's key; p is not 0.
  __device__ float factor(std::uint64_t key, std::int64_t head, std::int64_t t,
                          std::int64_t u) const {
    const std::int64_t row = (shape.first_head + head) * shape.seq_len + t;
    const auto e = static_cast<std::uint64_t>(row * shape.seq_len + u);
    const PhiloxBlock draw = philox_at(key, e / 4);
    // Not draw[e % 4], which would lie in memory instead of registers.
    const std::uint32_t upper = (e & 1) != 0 ? draw[3] : draw[2];
    const std::uint32_t lower = (e & 1) != 0 ? draw[1] : draw[0];
    return uniform_from((e & 2) != 0 ? upper : lower) >= dropout.p ? 1 / (1 - dropout.p) : 0;
  }
};

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

}  // namespace llm::cuda
