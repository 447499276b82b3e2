#include "tensor/ops/activation.h"

#include <algorithm>

#include "tensor/cuda/issue.h"
#include "tensor/ops/activation_kernels.h"
#include "tensor/ops/activation_value.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace plain {

void activation_forward(Activation f, const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = activation_at(f, x[i]).value;
}

void activation_backward(Activation f, const float* x, const float* dy, float* dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = activation_at(f, x[i]).slope * dy[i];
}

void gated_forward(Activation f, const float* gate, const float* up, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = activation_at(f, gate[i]).value * up[i];
}

void gated_backward(Activation f, const float* gate, const float* up, const float* dy, float* dgate,
                    float* dup, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const ValueAndSlope at = activation_at(f, gate[i]);
    const float dy_i = dy[i];  // dup may be dy
    dgate[i] = dy_i * up[i] * at.slope;
    dup[i] = dy_i * at.value;
  }
}

}  // namespace plain

namespace {

/// A tile's elements, of rows that are there.
Range used(Range tile, const View& x, const View& n_rows) {
  if (n_rows.empty()) return tile;
  const std::int64_t n = n_rows.as<std::int32_t>()[0] * x.shape()[1];
  return {std::min(tile.begin, n), std::min(tile.end, n)};
}

void check_rows(const View& n_rows, const View& x) {
  if (n_rows.empty()) return;
  expect_elements(n_rows, "n_rows", 1, Dtype::i32);
  expect_matrix(x, "x", x.dtype());
}

}  // namespace

void activation_forward(Queue& queue, Activation f, View x, MutView y, View n_rows) {
  check_rows(n_rows, x);
  const std::int64_t n = x.n_elements();
  const Dtype dtype = compute_dtype(x, "x");
  expect_elements(y, "y", n, dtype);
  if (issued(queue, "activation_forward", &cuda::OpCalls::activation_forward, f, x, y, n_rows))
    return;
  const RowCut cut = cut_by_bytes(n, 8);
  queue.tiles("activation_forward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range at = used(cut.rows(tile), x, n_rows);
    fast::activation_forward(f, Elements(x) + at.begin, MutElements(y) + at.begin, at.size());
  });
}

void activation_backward(Queue& queue, Activation f, View x, View dy, MutView dx, View n_rows) {
  check_rows(n_rows, x);
  const std::int64_t n = x.n_elements();
  const Dtype dtype = compute_dtype(x, "x");
  expect_elements(dy, "dy", n, dtype);
  expect_elements(dx, "dx", n, dtype);
  if (issued(queue, "activation_backward", &cuda::OpCalls::activation_backward, f, x, dy, dx,
             n_rows))
    return;
  const RowCut cut = cut_by_bytes(n, 12);
  queue.tiles("activation_backward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range at = used(cut.rows(tile), x, n_rows);
    fast::activation_backward(f, Elements(x) + at.begin, Elements(dy) + at.begin,
                              MutElements(dx) + at.begin, at.size());
  });
}

void gated_forward(Queue& queue, Activation f, View gate, View up, MutView y, View n_rows) {
  check_rows(n_rows, gate);
  const std::int64_t n = gate.n_elements();
  const Dtype dtype = compute_dtype(gate, "gate");
  expect_elements(up, "up", n, dtype);
  expect_elements(y, "y", n, dtype);
  if (issued(queue, "gated_forward", &cuda::OpCalls::gated_forward, f, gate, up, y, n_rows)) return;
  const RowCut cut = cut_by_bytes(n, 12);
  queue.tiles("gated_forward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range at = used(cut.rows(tile), gate, n_rows);
    fast::gated_forward(f, Elements(gate) + at.begin, Elements(up) + at.begin,
                        MutElements(y) + at.begin, at.size());
  });
}

void gated_backward(Queue& queue, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup, View n_rows) {
  check_rows(n_rows, gate);
  const std::int64_t n = gate.n_elements();
  const Dtype dtype = compute_dtype(gate, "gate");
  expect_elements(up, "up", n, dtype);
  expect_elements(dy, "dy", n, dtype);
  expect_elements(dgate, "dgate", n, dtype);
  expect_elements(dup, "dup", n, dtype);
  if (issued(queue, "gated_backward", &cuda::OpCalls::gated_backward, f, gate, up, dy, dgate, dup,
             n_rows))
    return;
  const RowCut cut = cut_by_bytes(n, 20);
  queue.tiles("gated_backward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range at = used(cut.rows(tile), gate, n_rows);
    fast::gated_backward(f, Elements(gate) + at.begin, Elements(up) + at.begin,
                         Elements(dy) + at.begin, MutElements(dgate) + at.begin,
                         MutElements(dup) + at.begin, at.size());
  });
}

}  // namespace llm
