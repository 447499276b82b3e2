#include "tensor/ops/adamw.h"

#include <array>
#include <cmath>

#include "tensor/cuda/issue.h"
#include "tensor/ops/adamw_kernels.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/tiles.h"

namespace llm {

AdamwFactors::AdamwFactors(const AdamwStep& step) {
  const auto t = static_cast<double>(step.t);
  keep_m = step.beta1;
  take_m = 1 - step.beta1;
  keep_v = step.beta2;
  take_v = 1 - step.beta2;
  decay = step.lr * step.weight_decay;
  step_size = static_cast<float>(step.lr / (1 - std::pow(double{step.beta1}, t)));
  v_scale = static_cast<float>(1 / (1 - std::pow(double{step.beta2}, t)));
  epsilon = step.epsilon;
  grad_scale = step.grad_scale;
}

namespace plain {

void adamw(const AdamwFactors& f, const float* grads, float* weights, float* m, float* v,
           std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = f.grad_scale * grads[i];
    m[i] = f.keep_m * m[i] + f.take_m * g;
    v[i] = f.keep_v * v[i] + f.take_v * (g * g);
    weights[i] -= f.decay * weights[i];
    weights[i] -= f.step_size * m[i] / (std::sqrt(f.v_scale * v[i]) + f.epsilon);
  }
}

double sum_of_squares(const float* x, std::int64_t n) {
  std::array<double, 16> lanes{};
  for (std::int64_t i = 0; i < n; ++i) {
    lanes[static_cast<std::size_t>(i % 16)] += double{x[i]} * double{x[i]};
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace plain

void adamw(Queue& queue, const AdamwStep& step, View grads, MutView weights, MutView m, MutView v,
           MutView copy) {
  const std::int64_t n = weights.n_elements();
  CHECK_CONTRACT(step.t >= 1, "AdamW counts its steps from 1");
  expect_elements(grads, "grads", n);
  expect_elements(weights, "weights", n);
  expect_elements(m, "m", n);
  expect_elements(v, "v", n);
  if (!copy.empty()) expect_elements(copy, "copy", n, compute_dtype(copy, "copy"));
  if (issued(queue, "adamw", &cuda::OpCalls::adamw, step, grads, weights, m, v, copy)) return;
  const AdamwFactors factors(step);
  const RowCut cut = cut_by_bytes(n, 28);
  queue.tiles("adamw", cut.n_tiles(), [=](std::int64_t tile) {
    const Range at = cut.rows(tile);
    fast::adamw(factors, grads.as<float>() + at.begin, weights.as<float>() + at.begin,
                m.as<float>() + at.begin, v.as<float>() + at.begin, MutElements(copy) + at.begin,
                at.size());
  });
}

void sum_of_squares(Queue& queue, View x, MutView chunk_sums) {
  const std::int64_t n = x.n_elements();
  expect_elements(x, "x", n);
  const RowCut chunks{n, norm_chunk_elements};
  expect(chunk_sums, "chunk_sums", Dtype::f64, {chunks.n_tiles()});
  if (issued(queue, "sum_of_squares", &cuda::OpCalls::sum_of_squares, x, chunk_sums)) return;
  const RowCut cut = cut_by_bytes(chunks.n_tiles(), 4 * norm_chunk_elements);
  queue.tiles("sum_of_squares", cut.n_tiles(), [=](std::int64_t tile) {
    const Range at = cut.rows(tile);
    for (std::int64_t chunk = at.begin; chunk < at.end; ++chunk) {
      const Range elements = chunks.rows(chunk);
      chunk_sums.as<double>()[chunk] =
          fast::sum_of_squares(x.as<float>() + elements.begin, elements.size());
    }
  });
}

}  // namespace llm
