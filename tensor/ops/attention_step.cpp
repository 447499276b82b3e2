#include "tensor/ops/attention_step.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/cuda/issue.h"
#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/matmul.h"

namespace llm {
namespace {

std::int64_t check_kept(const AttentionShape& shape, const View& kept, const char* name) {
  CHECK_CONTRACT(kept.shape().n_dims() == 3, "keys and values are kept by head, position, element");
  const std::int64_t capacity = kept.shape()[1];
  expect(kept, name, {shape.n_kv_heads, capacity, shape.head_dim});
  return capacity;
}

void check_one_token(const AttentionShape& shape, const View& qkv) {
  CHECK_CONTRACT(shape.batch == 1 && shape.seq_len == 1, "a step is one token");
  CHECK_CONTRACT(shape.n_kv_heads > 0 && shape.n_heads % shape.n_kv_heads == 0,
                 "n_heads is a multiple of n_kv_heads");
  expect(qkv, "qkv", {1, shape.qkv_width()});
}

/// c (m) = op(a) b, where op(a) is (m, k).
void times_vector(bool transpose_a, std::int64_t m, std::int64_t k, float alpha, const float* a,
                  std::int64_t lda, const float* b, float* c) {
  matmul({.transpose_a = transpose_a,
          .transpose_b = false,
          .m = m,
          .n = 1,
          .k = k,
          .alpha = alpha,
          .a = a,
          .lda = lda,
          .b = b,
          .ldb = 1,
          .beta = 0,
          .c = c,
          .ldc = 1});
}

/// x becomes its softmax.
void softmax(std::vector<float>& x) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float& x_i : x) {
    x_i = std::exp(x_i - max);
    sum += double{x_i};
  }
  const auto factor = static_cast<float>(1 / sum);
  for (float& x_i : x) x_i *= factor;
}

}  // namespace

void rope_step(Queue& queue, AttentionShape shape, float theta, std::int64_t position,
               MutView qkv) {
  check_one_token(shape, qkv);
  CHECK_CONTRACT(shape.head_dim % 2 == 0, "rotary positions turn pairs: head_dim is even");
  if (issued(queue, "rope_step", &cuda::OpCalls::rope_step, shape, theta, position, qkv)) return;
  queue.work("rope_step", [=] {
    const auto half = static_cast<std::size_t>(shape.head_dim / 2);
    std::vector<float> cos(half);
    std::vector<float> sin(half);
    for (std::size_t i = 0; i < half; ++i) {  // as rope_table has them
      const double angle = static_cast<double>(position) *
                           std::pow(double{theta}, -2 * static_cast<double>(i) /
                                                       static_cast<double>(shape.head_dim));
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    fast::rope({.n_heads = shape.n_heads + shape.n_kv_heads,
                .head_dim = shape.head_dim,
                .cos = cos.data(),
                .sin = sin.data(),
                .direction = 1,
                .row = MutElements(qkv)});
  });
}

void keep_keys_values(Queue& queue, AttentionShape shape, View qkv, std::int64_t begin,
                      MutView keys, MutView values) {
  CHECK_CONTRACT(shape.batch == 1, "one sequence is kept");
  expect(qkv, "qkv", {shape.seq_len, shape.qkv_width()});
  const std::int64_t capacity = check_kept(shape, keys, "keys");
  CHECK_CONTRACT(check_kept(shape, values, "values") == capacity, "keys and values go together");
  CHECK_CONTRACT(begin >= 0 && begin + shape.seq_len <= capacity, "what is kept has room");
  if (issued(queue, "keep_keys_values", &cuda::OpCalls::keep_keys_values, shape, qkv, begin, keys,
             values)) {
    return;
  }
  queue.work("keep_keys_values", [=] {
    const HeadColumns columns(shape);
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      for (std::int64_t t = 0; t < shape.seq_len; ++t) {
        const float* row = qkv.as<float>() + t * shape.qkv_width();
        const std::int64_t to = (head * capacity + begin + t) * shape.head_dim;
        std::copy_n(row + columns.key(head), shape.head_dim, keys.as<float>() + to);
        std::copy_n(row + columns.value(head), shape.head_dim, values.as<float>() + to);
      }
    }
  });
}

void attention_step(Queue& queue, AttentionShape shape, View qkv, View keys, View values,
                    std::int64_t n_kept, MutView out) {
  check_one_token(shape, qkv);
  const std::int64_t capacity = check_kept(shape, keys, "keys");
  CHECK_CONTRACT(check_kept(shape, values, "values") == capacity, "keys and values go together");
  CHECK_CONTRACT(n_kept >= 1 && n_kept <= capacity, "a step reads what is kept");
  expect(out, "out", {1, shape.n_heads * shape.head_dim});
  if (issued(queue, "attention_step", &cuda::OpCalls::attention_step, shape, qkv, keys, values,
             n_kept, out)) {
    return;
  }
  queue.tiles("attention_step", shape.n_heads, [=](std::int64_t head) {
    const HeadColumns columns(shape);
    const std::int64_t d = shape.head_dim;
    const std::int64_t kept = head / columns.group_size() * capacity * d;
    std::vector<float> weights(static_cast<std::size_t>(n_kept));
    times_vector(false, n_kept, d, 1 / std::sqrt(static_cast<float>(d)), keys.as<float>() + kept, d,
                 qkv.as<float>() + columns.query(head), weights.data());
    softmax(weights);
    times_vector(true, d, n_kept, 1, values.as<float>() + kept, d, weights.data(),
                 out.as<float>() + head * d);
  });
}

}  // namespace llm
