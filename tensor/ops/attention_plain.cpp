#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/dropout_kernels.h"

namespace llm {

RopeTable rope_table(const AttentionShape& shape, float theta) {
  struct Kept {
    float theta = 0;
    std::int64_t head_dim = 0;
    std::vector<float> cos, sin;
  };
  static thread_local Kept kept;
  const auto n = static_cast<std::size_t>(shape.seq_len * (shape.head_dim / 2));
  if (kept.theta != theta || kept.head_dim != shape.head_dim || kept.cos.size() < n) {
    kept = {theta, shape.head_dim, std::vector<float>(n), std::vector<float>(n)};
    for (std::size_t entry = 0; entry < n; ++entry) {
      const auto t = static_cast<double>(entry / static_cast<std::size_t>(shape.head_dim / 2));
      const auto i = static_cast<double>(entry % static_cast<std::size_t>(shape.head_dim / 2));
      const double angle =
          t * std::pow(double{theta}, -2 * i / static_cast<double>(shape.head_dim));
      kept.cos[entry] = static_cast<float>(std::cos(angle));
      kept.sin[entry] = static_cast<float>(std::sin(angle));
    }
  }
  return {kept.cos.data(), kept.sin.data()};
}

namespace plain {
namespace {

float dot(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float factor, const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

float score_scale(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<float>(shape.head_dim));
}

/// Factors 0 or 1 / (1 - p) of row t of p: all 1 without dropout.
std::vector<float> row_factors(const AttentionShape& shape, const Dropout& dropout,
                               std::int64_t sample, std::int64_t head, std::int64_t t) {
  std::vector<float> factors(static_cast<std::size_t>(t + 1), 1.0f);
  if (dropout.p > 0) {
    dropout_factors(dropout.key(sample), dropout.p, (head * shape.seq_len + t) * shape.seq_len,
                    t + 1, factors.data());
  }
  return factors;
}

}  // namespace

void rope(const RopeRow& p) {
  const std::int64_t half = p.head_dim / 2;
  for (std::int64_t head = 0; head < p.n_heads; ++head) {
    float* x = p.row.as<float>() + head * p.head_dim;
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = x[i];
      const float b = x[i + half];
      const float sin = p.direction * p.sin[i];
      x[i] = a * p.cos[i] - b * sin;
      x[i + half] = b * p.cos[i] + a * sin;
    }
  }
}

void attention_forward(const AttentionForward& call, std::int64_t sample, std::int64_t head) {
  const AttentionShape& s = call.shape;
  const HeadColumns columns(s);
  const std::int64_t kv_head = head / columns.group_size();
  const std::int64_t width = s.qkv_width();
  const float* rows = call.qkv + sample * s.seq_len * width;
  const float* keys = rows + columns.key(kv_head);
  const float* values = rows + columns.value(kv_head);
  std::vector<float> scores(static_cast<std::size_t>(s.seq_len));
  for (std::int64_t t = 0; t < s.seq_len; ++t) {
    const float* query = rows + t * width + columns.query(head);
    float max = -INFINITY;
    for (std::int64_t u = 0; u <= t; ++u) {
      scores[static_cast<std::size_t>(u)] =
          score_scale(s) * dot(query, keys + u * width, s.head_dim);
      max = std::max(max, scores[static_cast<std::size_t>(u)]);
    }
    float sum = 0;
    for (std::int64_t u = 0; u <= t; ++u) {
      sum += std::exp(scores[static_cast<std::size_t>(u)] - max);
    }
    const float log_sum = max + std::log(sum);
    call.log_sum_exp[(sample * s.n_heads + head) * s.seq_len + t] = log_sum;
    const std::vector<float> factors =
        row_factors(s, call.dropout, sample, call.first_head + head, t);
    float* out = call.out + ((sample * s.seq_len + t) * s.n_heads + head) * s.head_dim;
    std::fill(out, out + s.head_dim, 0.0f);
    for (std::int64_t u = 0; u <= t; ++u) {
      const auto at = static_cast<std::size_t>(u);
      add_scaled(factors[at] * std::exp(scores[at] - log_sum), values + u * width, out, s.head_dim);
    }
  }
}

// With p the softmax, f the dropout factors and o = sum of f p v: dv = f p do, dp = f (do v),
// ds = p (dp - do o), since sum of p dp = do o. The scale of the scores goes to dq and dk.
void attention_backward(const AttentionBackward& call, std::int64_t sample, std::int64_t kv_head) {
  const AttentionShape& s = call.shape;
  const HeadColumns columns(s);
  const std::int64_t width = s.qkv_width();
  const float* rows = call.qkv + sample * s.seq_len * width;
  float* drows = call.dqkv + sample * s.seq_len * width;
  for (std::int64_t t = 0; t < s.seq_len; ++t) {
    std::fill_n(drows + t * width + columns.key(kv_head), s.head_dim, 0.0f);
    std::fill_n(drows + t * width + columns.value(kv_head), s.head_dim, 0.0f);
  }
  const std::int64_t first_head = kv_head * columns.group_size();
  for (std::int64_t head = first_head; head < first_head + columns.group_size(); ++head) {
    for (std::int64_t t = 0; t < s.seq_len; ++t) {
      const std::int64_t out_begin = ((sample * s.seq_len + t) * s.n_heads + head) * s.head_dim;
      const float* dout = call.dout + out_begin;
      const float dout_out = dot(dout, call.out + out_begin, s.head_dim);
      const float log_sum = call.log_sum_exp[(sample * s.n_heads + head) * s.seq_len + t];
      const std::vector<float> factors =
          row_factors(s, call.dropout, sample, call.first_head + head, t);
      const float* query = rows + t * width + columns.query(head);
      float* dquery = drows + t * width + columns.query(head);
      std::fill(dquery, dquery + s.head_dim, 0.0f);
      for (std::int64_t u = 0; u <= t; ++u) {
        const float* key = rows + u * width + columns.key(kv_head);
        const float* value = rows + u * width + columns.value(kv_head);
        const float factor = factors[static_cast<std::size_t>(u)];
        const float p = std::exp(score_scale(s) * dot(query, key, s.head_dim) - log_sum);
        const float ds = score_scale(s) * p * (factor * dot(dout, value, s.head_dim) - dout_out);
        add_scaled(ds, key, dquery, s.head_dim);
        add_scaled(ds, query, drows + u * width + columns.key(kv_head), s.head_dim);
        add_scaled(factor * p, dout, drows + u * width + columns.value(kv_head), s.head_dim);
      }
    }
  }
}

}  // namespace plain
}  // namespace llm
