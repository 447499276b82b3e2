#include "tensor/ops/norm.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/norm_kernels.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace plain {
namespace {

void zero_sums(const NormBackward& p) {
  std::fill(p.dweight, p.dweight + p.width, 0.0f);
  if (p.dbias) std::fill(p.dbias, p.dbias + p.width, 0.0f);
}

}  // namespace

void layer_norm_forward(const NormForward& p) {
  const auto n = static_cast<float>(p.width);
  for (std::int64_t r = 0; r < p.n_rows; ++r) {
    const float* x = p.x.as<float>() + r * p.width;
    float* y = p.y.as<float>() + r * p.width;
    float mean = 0;
    for (std::int64_t c = 0; c < p.width; ++c) mean += x[c];
    mean /= n;
    float variance = 0;
    for (std::int64_t c = 0; c < p.width; ++c) variance += (x[c] - mean) * (x[c] - mean);
    variance /= n;
    const float rstd = 1 / std::sqrt(variance + p.epsilon);
    for (std::int64_t c = 0; c < p.width; ++c) {
      y[c] = (x[c] - mean) * rstd * p.weight[c] + (p.bias ? p.bias[c] : 0);
    }
    p.mean[r] = mean;
    p.rstd[r] = rstd;
  }
}

// With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)).
void layer_norm_backward(const NormBackward& p) {
  zero_sums(p);
  const auto n = static_cast<float>(p.width);
  for (std::int64_t r = 0; r < p.n_rows; ++r) {
    const float* x = p.x.as<float>() + r * p.width;
    const float* dy = p.dy.as<float>() + r * p.width;
    float* dx = p.dx.as<float>() + r * p.width;
    float sum_g = 0;
    float sum_gh = 0;
    for (std::int64_t c = 0; c < p.width; ++c) {
      const float h = (x[c] - p.mean[r]) * p.rstd[r];
      sum_g += dy[c] * p.weight[c];
      sum_gh += dy[c] * p.weight[c] * h;
    }
    for (std::int64_t c = 0; c < p.width; ++c) {
      const float h = (x[c] - p.mean[r]) * p.rstd[r];
      const float grad = p.rstd[r] * (dy[c] * p.weight[c] - sum_g / n - h * (sum_gh / n));
      p.dweight[c] += dy[c] * h;
      if (p.dbias) p.dbias[c] += dy[c];
      dx[c] = p.add_dx ? dx[c] + grad : grad;
    }
  }
}

void rms_norm_forward(const NormForward& p) {
  const auto n = static_cast<float>(p.width);
  for (std::int64_t r = 0; r < p.n_rows; ++r) {
    const float* x = p.x.as<float>() + r * p.width;
    float* y = p.y.as<float>() + r * p.width;
    float squares = 0;
    for (std::int64_t c = 0; c < p.width; ++c) squares += x[c] * x[c];
    const float rstd = 1 / std::sqrt(squares / n + p.epsilon);
    for (std::int64_t c = 0; c < p.width; ++c) y[c] = x[c] * rstd * p.weight[c];
    p.rstd[r] = rstd;
  }
}

// With h = x rstd and g = dy weight: dx = rstd (g - h mean(g h)).
void rms_norm_backward(const NormBackward& p) {
  zero_sums(p);
  const auto n = static_cast<float>(p.width);
  for (std::int64_t r = 0; r < p.n_rows; ++r) {
    const float* x = p.x.as<float>() + r * p.width;
    const float* dy = p.dy.as<float>() + r * p.width;
    float* dx = p.dx.as<float>() + r * p.width;
    float sum_gh = 0;
    for (std::int64_t c = 0; c < p.width; ++c) sum_gh += dy[c] * p.weight[c] * x[c] * p.rstd[r];
    for (std::int64_t c = 0; c < p.width; ++c) {
      const float h = x[c] * p.rstd[r];
      const float grad = p.rstd[r] * (dy[c] * p.weight[c] - h * (sum_gh / n));
      p.dweight[c] += dy[c] * h;
      dx[c] = p.add_dx ? dx[c] + grad : grad;
    }
  }
}

}  // namespace plain

namespace {

struct ForwardViews {
  View x, weight, bias;
  float epsilon;
  MutView y, mean, rstd;
};

struct BackwardViews {
  View x, weight, mean, rstd, dy;
  Write write_dx;
  MutView dx;
  Write write_dw;
  MutView dweight, dbias;
};

const float* at(const View& view, std::int64_t begin) {
  return view.empty() ? nullptr : view.as<float>() + begin;
}
float* at(const MutView& view, std::int64_t begin) {
  return view.empty() ? nullptr : view.as<float>() + begin;
}

/// An RMSNorm has no mean.
bool is_issued(Queue& queue, const char* name, const ForwardViews& v) {
  if (!v.mean.empty()) {
    return issued(queue, name, &cuda::OpCalls::layer_norm_forward, v.x, v.weight, v.bias, v.epsilon,
                  v.y, v.mean, v.rstd);
  }
  return issued(queue, name, &cuda::OpCalls::rms_norm_forward, v.x, v.weight, v.epsilon, v.y,
                v.rstd);
}
bool is_issued(Queue& queue, const char* name, const BackwardViews& v) {
  if (!v.mean.empty()) {
    return issued(queue, name, &cuda::OpCalls::layer_norm_backward, v.x, v.weight, v.mean, v.rstd,
                  v.dy, v.write_dx, v.dx, v.write_dw, v.dweight, v.dbias);
  }
  return issued(queue, name, &cuda::OpCalls::rms_norm_backward, v.x, v.weight, v.rstd, v.dy,
                v.write_dx, v.dx, v.write_dw, v.dweight);
}

void forward(Queue& queue, const char* name, const ForwardViews& v,
             void (*body)(const NormForward&)) {
  const Dtype dtype = compute_dtype(v.x, "x");
  expect_matrix(v.x, "x", dtype);
  const std::int64_t n = v.x.shape()[0];
  const std::int64_t width = v.x.shape()[1];
  expect(v.weight, "weight", {width});
  if (!v.bias.empty()) expect(v.bias, "bias", {width});
  if (!v.mean.empty()) expect(v.mean, "mean", {n});
  expect(v.rstd, "rstd", {n});
  expect(v.y, "y", dtype, {n, width});
  if (is_issued(queue, name, v)) return;
  const RowCut cut = cut_by_bytes(n, 8 * width);
  queue.tiles(name, cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    body({.n_rows = rows.size(),
          .width = width,
          .x = Elements(v.x) + rows.begin * width,
          .weight = at(v.weight, 0),
          .bias = at(v.bias, 0),
          .epsilon = v.epsilon,
          .y = MutElements(v.y) + rows.begin * width,
          .mean = at(v.mean, rows.begin),
          .rstd = at(v.rstd, rows.begin)});
  });
}

void add_partials(const std::vector<float>& partials, std::int64_t first, std::int64_t stride,
                  Write write, const MutView& out) {
  const std::int64_t width = out.n_elements();
  for (std::int64_t c = 0; c < width; ++c) {
    float sum = 0;
    for (auto i = static_cast<std::size_t>(first + c); i < partials.size();
         i += static_cast<std::size_t>(stride)) {
      sum += partials[i];
    }
    float& into = out.as<float>()[c];
    into = write == Write::add ? into + sum : sum;
  }
}

/// Each tile sums dweight and dbias over its own rows; one more tile adds these sums in order.
void backward(Queue& queue, const char* name, const BackwardViews& v,
              void (*body)(const NormBackward&)) {
  const Dtype dtype = compute_dtype(v.x, "x");
  expect_matrix(v.x, "x", dtype);
  const std::int64_t n = v.x.shape()[0];
  const std::int64_t width = v.x.shape()[1];
  expect(v.weight, "weight", {width});
  if (!v.mean.empty()) expect(v.mean, "mean", {n});
  expect(v.rstd, "rstd", {n});
  expect(v.dy, "dy", dtype, {n, width});
  expect(v.dx, "dx", dtype, {n, width});
  expect(v.dweight, "dweight", {width});
  if (!v.dbias.empty()) expect(v.dbias, "dbias", {width});
  if (is_issued(queue, name, v)) return;
  const RowCut cut = cut_by_bytes(n, 16 * width);
  const std::int64_t stride = (v.dbias.empty() ? 1 : 2) * width;
  const auto partials =
      std::make_shared<std::vector<float>>(static_cast<std::size_t>(cut.n_tiles() * stride));
  queue.tiles(name, cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    float* sums = partials->data() + tile * stride;
    body({.n_rows = rows.size(),
          .width = width,
          .x = Elements(v.x) + rows.begin * width,
          .weight = at(v.weight, 0),
          .mean = at(v.mean, rows.begin),
          .rstd = at(v.rstd, rows.begin),
          .dy = Elements(v.dy) + rows.begin * width,
          .add_dx = v.write_dx == Write::add,
          .dx = MutElements(v.dx) + rows.begin * width,
          .dweight = sums,
          .dbias = v.dbias.empty() ? nullptr : sums + width});
  });
  queue.work(name, [=] {
    add_partials(*partials, 0, stride, v.write_dw, v.dweight);
    if (!v.dbias.empty()) add_partials(*partials, width, stride, v.write_dw, v.dbias);
  });
}

}  // namespace

void layer_norm_forward(Queue& queue, View x, View weight, View bias, float epsilon, MutView y,
                        MutView mean, MutView rstd) {
  expect(mean, "mean", rstd.shape());
  forward(queue, "layer_norm_forward", {x, weight, bias, epsilon, y, mean, rstd},
          fast::layer_norm_forward);
}

void layer_norm_backward(Queue& queue, View x, View weight, View mean, View rstd, View dy,
                         Write write_dx, MutView dx, Write write_dw, MutView dweight,
                         MutView dbias) {
  expect(mean, "mean", rstd.shape());
  backward(queue, "layer_norm_backward",
           {x, weight, mean, rstd, dy, write_dx, dx, write_dw, dweight, dbias},
           fast::layer_norm_backward);
}

void rms_norm_forward(Queue& queue, View x, View weight, float epsilon, MutView y, MutView rstd) {
  forward(queue, "rms_norm_forward", {x, weight, View(), epsilon, y, MutView(), rstd},
          fast::rms_norm_forward);
}

void rms_norm_backward(Queue& queue, View x, View weight, View rstd, View dy, Write write_dx,
                       MutView dx, Write write_dw, MutView dweight) {
  backward(queue, "rms_norm_backward",
           {x, weight, View(), rstd, dy, write_dx, dx, write_dw, dweight, MutView()},
           fast::rms_norm_backward);
}

}  // namespace llm
