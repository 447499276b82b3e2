#include "tests/support/float64.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "src/base/philox.h"

namespace llm::float64 {
namespace {

double square(double x) {
  return x * x;
}

}  // namespace

double activation(Activation f, double x) {
  switch (f) {
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::relu:
      return std::max(x, 0.0);
  }
  return left_out;
}

double slope(Activation f, double x) {
  switch (f) {
    case Activation::gelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Activation::gelu_tanh: {
      const double tanh = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
      const double inner = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
      return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner;
    }
    case Activation::silu: {
      const double sigmoid = 1 / (1 + std::exp(-x));
      return sigmoid * (1 + x * (1 - sigmoid));
    }
    case Activation::relu:
      return x > 0 ? 1 : 0;
  }
  return left_out;
}

RowStatistics norm_statistics(const Norm& norm, const Doubles& x, std::size_t width) {
  RowStatistics statistics;
  const auto n = static_cast<double>(width);
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < width && !norm.is_rms; ++c) mean += x[begin + c] / n;
    for (std::size_t c = 0; c < width; ++c) variance += square(x[begin + c] - mean) / n;
    statistics.mean.push_back(mean);
    statistics.rstd.push_back(1 / std::sqrt(variance + norm.epsilon));
  }
  return statistics;
}

Doubles norm_forward(const Norm& norm, const Doubles& x, const Doubles& weight,
                     const Doubles& bias) {
  const std::size_t width = weight.size();
  const RowStatistics of = norm_statistics(norm, x, width);
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / width, c = i % width;
    y[i] = (x[i] - of.mean[row]) * of.rstd[row] * weight[c] + (bias.empty() ? 0 : bias[c]);
  }
  return y;
}

NormGradients norm_backward(const Norm& norm, const Doubles& x, const Doubles& weight,
                            const Doubles& dy) {
  const std::size_t width = weight.size();
  const RowStatistics of = norm_statistics(norm, x, width);
  NormGradients gradients{Doubles(x.size()), Doubles(width), Doubles(width)};
  Doubles unit(width), dunit(width);
  for (std::size_t row = 0; row < of.rstd.size(); ++row) {
    double mean = 0, product = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t i = row * width + c;
      unit[c] = (x[i] - of.mean[row]) * of.rstd[row];
      dunit[c] = dy[i] * weight[c];
      gradients.dweight[c] += dy[i] * unit[c];
      gradients.dbias[c] += dy[i];
      if (!norm.is_rms) mean += dunit[c] / static_cast<double>(width);
      product += dunit[c] * unit[c] / static_cast<double>(width);
    }
    for (std::size_t c = 0; c < width; ++c) {
      gradients.dx[row * width + c] = of.rstd[row] * (dunit[c] - mean - unit[c] * product);
    }
  }
  return gradients;
}

std::size_t Linear::expert_of(std::size_t row) const {
  const auto next = std::upper_bound(begins.begin(), std::prev(begins.end()), row);
  return static_cast<std::size_t>(next - begins.begin()) - 1;
}

Doubles linear_forward(const Linear& layer, const Doubles& x, const Doubles& weight,
                       const Doubles& bias, const std::vector<std::size_t>& rows) {
  const auto [begins, n_in, n_out] = layer;
  Doubles y(x.size() / n_in * n_out, left_out);
  for (const std::size_t row : rows) {
    const std::size_t first = layer.expert_of(row) * n_out;
    for (std::size_t o = 0; o < n_out; ++o) {
      double sum = bias.empty() ? 0 : bias[first + o];
      const double* const w = weight.data() + (first + o) * n_in;
      for (std::size_t i = 0; i < n_in; ++i) sum += x[row * n_in + i] * w[i];
      y[row * n_out + o] = sum;
    }
  }
  return y;
}

Doubles linear_backward_input(const Linear& layer, const Doubles& dy, const Doubles& weight,
                              const std::vector<std::size_t>& rows) {
  const auto [begins, n_in, n_out] = layer;
  Doubles dx(dy.size() / n_out * n_in, left_out);
  for (const std::size_t row : rows) {
    const std::size_t first = layer.expert_of(row) * n_out;
    double* const out = dx.data() + row * n_in;
    std::fill(out, out + n_in, 0.0);
    for (std::size_t o = 0; o < n_out; ++o) {
      const double* const w = weight.data() + (first + o) * n_in;
      for (std::size_t i = 0; i < n_in; ++i) out[i] += dy[row * n_out + o] * w[i];
    }
  }
  return dx;
}

Doubles linear_backward_weight(const Linear& layer, const Doubles& x, const Doubles& dy,
                               const std::vector<std::size_t>& features) {
  const auto [begins, n_in, n_out] = layer;
  Doubles dweight((begins.size() - 1) * n_out * n_in, left_out);
  for (const std::size_t feature : features) {
    const std::size_t expert = feature / n_out, o = feature % n_out;
    double* const out = dweight.data() + feature * n_in;
    std::fill(out, out + n_in, 0.0);
    for (std::size_t row = begins[expert]; row < begins[expert + 1]; ++row) {
      for (std::size_t i = 0; i < n_in; ++i) out[i] += dy[row * n_out + o] * x[row * n_in + i];
    }
  }
  return dweight;
}

Doubles linear_backward_bias(const Linear& layer, const Doubles& dy) {
  Doubles dbias((layer.begins.size() - 1) * layer.n_out);
  for (std::size_t row = layer.begins.front(); row < layer.n_rows(); ++row) {
    const std::size_t first = layer.expert_of(row) * layer.n_out;
    for (std::size_t o = 0; o < layer.n_out; ++o) dbias[first + o] += dy[row * layer.n_out + o];
  }
  return dbias;
}

double dropout_factor(const Dropout& dropout, std::int64_t sample, std::int64_t element) {
  if (dropout.p == 0) return 1;
  const auto e = static_cast<std::uint64_t>(element);
  const float drawn = uniform_from(philox_at(dropout.key(sample), e / 4)[e % 4]);
  return drawn >= dropout.p ? 1 / (1 - double{dropout.p}) : 0;
}

double log_sum_exp(const double* x, std::size_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

double cross_entropy(const double* logits, std::size_t n_classes, std::int64_t label) {
  if (label == ignored_label) return 0;
  return log_sum_exp(logits, n_classes) - logits[label];
}

void Adamw::step(const AdamwStep& s, double grad) {
  const double g = double{s.grad_scale} * grad, t = static_cast<double>(s.t);
  const double beta1 = double{s.beta1}, beta2 = double{s.beta2};
  m = beta1 * m + (1 - beta1) * g;
  v = beta2 * v + (1 - beta2) * g * g;
  w -= double{s.lr} * double{s.weight_decay} * w;
  w -= double{s.lr} * (m / (1 - std::pow(beta1, t))) /
       (std::sqrt(v / (1 - std::pow(beta2, t))) + double{s.epsilon});
}

}  // namespace llm::float64
