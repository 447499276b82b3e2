#include "tensor/ops/grouped_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/rounding.h"
#include "tensor/ops/scratch.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

/// y += weight * x
void add_scaled(Elements x, float weight, std::int64_t n, float* y) {
  with_type_of(x.dtype, [&](auto type) {
    const auto* const from = x.as<decltype(type)>();
    for (std::int64_t c = 0; c < n; ++c) y[c] += weight * to_float(from[c]);
  });
}

/// y = weight * x, rounded.
void scale(Elements x, float weight, std::int64_t n, MutElements y) {
  with_type_of(x.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t c = 0; c < n; ++c)
      y.as<T>()[c] = round_to<T>(weight * to_float(x.as<T>()[c]));
  });
}

/// Of each 16th product one sum, which the compiler makes a vector; then those in order.
float dot(Elements a, Elements b, std::int64_t n) {
  constexpr std::int64_t n_lanes = 16;
  std::array<float, n_lanes> sums{};
  with_type_of(a.dtype, [&](auto type) {
    const auto* const x = a.as<decltype(type)>();
    const auto* const y = b.as<decltype(type)>();
    const std::int64_t n_whole = n / n_lanes * n_lanes;
    for (std::int64_t c = 0; c < n_whole; c += n_lanes) {
      for (std::int64_t i = 0; i < n_lanes; ++i) {
        sums[static_cast<std::size_t>(i)] += to_float(x[c + i]) * to_float(y[c + i]);
      }
    }
    for (std::int64_t c = n_whole; c < n; ++c) sums[0] += to_float(x[c]) * to_float(y[c]);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0f);
}

/// A matrix of the grouped rows and one of the tokens, of one dtype; their width.
std::int64_t check(const RouterShape& shape, const Routing& routing, const View& grouped,
                   const View& of_tokens) {
  const Dtype dtype = compute_dtype(grouped, "x");
  expect_matrix(grouped, "grouped rows", dtype);
  const std::int64_t width = grouped.shape()[1];
  expect(grouped, "grouped rows", dtype, {shape.n_rows(), width});
  expect(of_tokens, "rows of tokens", dtype, {shape.n_tokens, width});
  expect(routing.rows, "rows", Dtype::i32, {shape.n_tokens, shape.top_k});
  expect(routing.visits, "visits", Dtype::i32, {shape.n_rows()});
  expect(routing.weights, "weights", {shape.n_tokens, shape.top_k});
  expect(routing.begins, "begins", Dtype::i32, {shape.n_own() + 1});
  return width;
}

}  // namespace

void group_rows(Queue& queue, const RouterShape& shape, const Routing& routing, View x, MutView y) {
  const std::int64_t width = check(shape, routing, y, x);
  if (issued(queue, "group_rows", &cuda::OpCalls::group_rows, shape, routing, x, y)) return;
  const RowCut cut = cut_by_bytes(shape.n_rows(), 8 * width);
  queue.tiles("group_rows", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    const auto* const visits = routing.visits.as<std::int32_t>();
    const std::int64_t n_used = routing.begins.as<std::int32_t>()[shape.n_own()];
    for (std::int64_t r = rows.begin; r < std::min(rows.end, n_used); ++r) {
      const Elements from = Elements(x) + visits[r] / shape.top_k * width;
      std::memcpy((MutElements(y) + r * width).data, from.data,
                  static_cast<std::size_t>(width) * size_of(x.dtype()));
    }
  });
}

void combine_rows(Queue& queue, const RouterShape& shape, const Routing& routing, Weigh weigh,
                  View x, MutView y) {
  const std::int64_t width = check(shape, routing, x, y);
  if (issued(queue, "combine_rows", &cuda::OpCalls::combine_rows, shape, routing, weigh, x, y))
    return;
  const RowCut cut = cut_by_bytes(shape.n_tokens, 8 * (shape.top_k + 1) * width);
  queue.tiles("combine_rows", cut.n_tiles(), [=](std::int64_t tile) {
    static thread_local Scratch<float> scratch;
    float* const sum = at_least(scratch, width);
    const Range tokens = cut.rows(tile);
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      std::fill_n(sum, width, 0.0f);
      for (std::int64_t v = t * shape.top_k; v < (t + 1) * shape.top_k; ++v) {
        const std::int64_t row = routing.rows.as<std::int32_t>()[v];
        if (row < 0) continue;
        const float weight = weigh == Weigh::yes ? routing.weights.as<float>()[v] : 1.0f;
        add_scaled(Elements(x) + row * width, weight, width, sum);
      }
      fast::convert(sum, MutElements(y) + t * width, width);
    }
  });
}

void combine_rows_backward(Queue& queue, const RouterShape& shape, const Routing& routing, View x,
                           View dy, MutView dx, MutView dweights) {
  const std::int64_t width = check(shape, routing, x, dy);
  expect(dx, "dx", x.dtype(), x.shape());
  expect(dweights, "dweights", {shape.n_tokens, shape.top_k});
  if (issued(queue, "combine_rows_backward", &cuda::OpCalls::combine_rows_backward, shape, routing,
             x, dy, dx, dweights))
    return;
  const RowCut cut = cut_by_bytes(shape.n_tokens, 12 * (shape.top_k + 1) * width);
  queue.tiles("combine_rows_backward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range tokens = cut.rows(tile);
    for (std::int64_t v = tokens.begin * shape.top_k; v < tokens.end * shape.top_k; ++v) {
      const std::int64_t row = routing.rows.as<std::int32_t>()[v];
      if (row < 0) {
        dweights.as<float>()[v] = 0;
        continue;
      }
      const Elements of_token = Elements(dy) + v / shape.top_k * width;
      dweights.as<float>()[v] = dot(of_token, Elements(x) + row * width, width);
      scale(of_token, routing.weights.as<float>()[v], width, MutElements(dx) + row * width);
    }
  });
}

std::int64_t combine_scratch_bytes(std::int64_t width) {
  return width * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace llm
