#include <algorithm>
#include <cmath>

#include "tests/support/float64.h"

namespace llm::float64 {
namespace {

/// The head `head` of row t in a group's sample, of a matrix of heads side by side.
template <typename T>
T* head_of(const AttentionShape& s, HeadGroup group, std::int64_t t, std::int64_t head, T* rows,
           std::int64_t n_heads) {
  return rows + ((group.sample * s.seq_len + t) * n_heads + head) * s.head_dim;
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void add(double factor, const double* x, double* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

/// Where the heads of a group lie.
class Heads {
 public:
  Heads(const AttentionShape& shape, HeadGroup group) : s_(shape), group_(group) {}
  std::int64_t n_queries() const { return s_.n_heads / s_.n_kv_heads; }
  std::int64_t query(std::int64_t i) const { return group_.kv_head * n_queries() + i; }
  std::int64_t key() const { return s_.n_heads + group_.kv_head; }
  std::int64_t value() const { return s_.n_heads + s_.n_kv_heads + group_.kv_head; }
  template <typename T>
  T* in_qkv(T* qkv, std::int64_t t, std::int64_t head) const {
    return head_of(s_, group_, t, head, qkv, s_.n_heads + 2 * s_.n_kv_heads);
  }
  template <typename T>
  T* in_out(T* out, std::int64_t t, std::int64_t head) const {
    return head_of(s_, group_, t, head, out, s_.n_heads);
  }
  /// q k / sqrt(head_dim) over the keys of row t.
  Doubles scores(const Doubles& qkv, std::int64_t t, std::int64_t head) const {
    Doubles scores;
    for (std::int64_t u = 0; u <= t; ++u) {
      scores.push_back(dot(in_qkv(qkv.data(), t, head), in_qkv(qkv.data(), u, key()), s_.head_dim) /
                       root());
    }
    return scores;
  }
  double root() const { return std::sqrt(static_cast<double>(s_.head_dim)); }
  double factor(const Dropout& dropout, std::int64_t head, std::int64_t t, std::int64_t u) const {
    const std::int64_t row = (s_.first_head + head) * s_.seq_len + t;
    return dropout_factor(dropout, group_.sample, row * s_.seq_len + u);
  }

 private:
  const AttentionShape& s_;
  HeadGroup group_;
};

}  // namespace

void rope(const AttentionShape& s, double theta, std::int64_t first, bool is_backward,
          Doubles& qkv) {
  const std::int64_t half = s.head_dim / 2;
  for (std::int64_t row = 0; row < s.n_tokens(); ++row) {
    for (std::int64_t head = 0; head < s.n_heads + s.n_kv_heads; ++head) {
      double* const x = qkv.data() + row * s.qkv_width() + head * s.head_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        const double turn = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
        const double angle = static_cast<double>(first + row % s.seq_len) * turn;
        const double cos = std::cos(angle), sin = is_backward ? -std::sin(angle) : std::sin(angle);
        const double a = x[i], b = x[i + half];
        x[i] = a * cos - b * sin;
        x[i + half] = b * cos + a * sin;
      }
    }
  }
}

std::vector<HeadGroup> all_groups(const AttentionShape& shape) {
  std::vector<HeadGroup> groups;
  for (std::int64_t sample = 0; sample < shape.batch; ++sample) {
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) groups.push_back({sample, head});
  }
  return groups;
}

void attention_forward(const AttentionShape& s, const Doubles& qkv, const Dropout& dropout,
                       HeadGroup group, Doubles& out, Doubles& log_sums) {
  const Heads heads(s, group);
  for (std::int64_t i = 0; i < heads.n_queries(); ++i) {
    const std::int64_t head = heads.query(i);
    for (std::int64_t t = 0; t < s.seq_len; ++t) {
      const Doubles scores = heads.scores(qkv, t, head);
      const double sum = log_sum_exp(scores.data(), scores.size());
      double* const row = heads.in_out(out.data(), t, head);
      std::fill(row, row + s.head_dim, 0.0);
      for (std::int64_t u = 0; u <= t; ++u) {
        const double p = std::exp(scores[static_cast<std::size_t>(u)] - sum);
        add(heads.factor(dropout, head, t, u) * p, heads.in_qkv(qkv.data(), u, heads.value()), row,
            s.head_dim);
      }
      const std::int64_t at = (group.sample * s.n_heads + head) * s.seq_len + t;
      log_sums[static_cast<std::size_t>(at)] = sum;
    }
  }
}

void attention_backward(const AttentionShape& s, const Doubles& qkv, const Doubles& dout,
                        const Dropout& dropout, HeadGroup group, Doubles& dqkv) {
  const Heads heads(s, group);
  const auto clear = [&](std::int64_t t, std::int64_t head) {
    double* const row = heads.in_qkv(dqkv.data(), t, head);
    std::fill(row, row + s.head_dim, 0.0);
  };
  for (std::int64_t t = 0; t < s.seq_len; ++t) {
    for (std::int64_t i = 0; i < heads.n_queries(); ++i) clear(t, heads.query(i));
    clear(t, heads.key());
    clear(t, heads.value());
  }
  const std::int64_t n = s.head_dim;
  for (std::int64_t i = 0; i < heads.n_queries(); ++i) {
    const std::int64_t head = heads.query(i);
    for (std::int64_t t = 0; t < s.seq_len; ++t) {
      const Doubles scores = heads.scores(qkv, t, head);
      const double sum = log_sum_exp(scores.data(), scores.size());
      const double* const d = heads.in_out(dout.data(), t, head);
      Doubles p(scores.size()), dp(scores.size());
      double mean = 0;  // of dp under p
      for (std::int64_t u = 0; u <= t; ++u) {
        const auto at = static_cast<std::size_t>(u);
        const double factor = heads.factor(dropout, head, t, u);
        p[at] = std::exp(scores[at] - sum);
        dp[at] = factor * dot(d, heads.in_qkv(qkv.data(), u, heads.value()), n);
        mean += p[at] * dp[at];
        add(factor * p[at], d, heads.in_qkv(dqkv.data(), u, heads.value()), n);
      }
      for (std::int64_t u = 0; u <= t; ++u) {
        const auto at = static_cast<std::size_t>(u);
        const double dscore = p[at] * (dp[at] - mean) / heads.root();
        add(dscore, heads.in_qkv(qkv.data(), u, heads.key()), heads.in_qkv(dqkv.data(), t, head),
            n);
        add(dscore, heads.in_qkv(qkv.data(), t, head), heads.in_qkv(dqkv.data(), u, heads.key()),
            n);
      }
    }
  }
}

}  // namespace llm::float64
