#include "tensor/ops/dropout.h"

#include <algorithm>
#include <cstring>

#include "src/base/philox.h"
#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/dropout_kernels.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace plain {

void dropout_factors(std::uint64_t key, float p, std::int64_t first, std::int64_t n,
                     float* factors) {
  const float scale = 1 / (1 - p);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto e = static_cast<std::uint64_t>(first + i);
    factors[i] = uniform_from(philox_at(key, e / 4)[e % 4]) >= p ? scale : 0;
  }
}

void dropout(std::uint64_t key, float p, std::int64_t first, std::int64_t n, const float* x,
             const float* residual, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    float factor = 0;
    dropout_factors(key, p, first + i, 1, &factor);
    out[i] = (residual ? residual[i] : 0) + factor * x[i];
  }
}

}  // namespace plain

namespace {

/// A tile is some rows of one sample, so that it has one key.
void masked(Queue& queue, const char* name, const Dropout& dropout, std::int64_t rows_per_sample,
            const View& x, const View& residual, const MutView& out) {
  const Dtype dtype = compute_dtype(x, "x");
  expect_matrix(x, "x", dtype);
  const std::int64_t n = x.shape()[0];
  const std::int64_t width = x.shape()[1];
  CHECK_CONTRACT(dropout.p >= 0 && dropout.p < 1, "dropout.p is in [0, 1)");
  CHECK_CONTRACT(rows_per_sample > 0 && dropout.first_row >= 0, "rows belong to samples");
  if (!residual.empty()) expect(residual, "residual", dtype, {n, width});
  expect(out, "out", dtype, {n, width});
  if (issued(queue, name, &cuda::OpCalls::dropout, dropout, rows_per_sample, x, residual, out))
    return;
  const RowCut cut = cut_by_bytes(rows_per_sample, 24 * width);
  const Range given{dropout.first_row, dropout.first_row + n};
  const std::int64_t first_sample = given.begin / rows_per_sample;
  const std::int64_t n_samples = (given.end + rows_per_sample - 1) / rows_per_sample - first_sample;
  queue.tiles(name, n_samples * cut.n_tiles(), [=](std::int64_t tile) {
    const std::int64_t sample = first_sample + tile / cut.n_tiles();
    const Range rows = cut.rows(tile % cut.n_tiles());
    const std::int64_t sample_row = sample * rows_per_sample;
    const std::int64_t first = std::max(sample_row + rows.begin, given.begin);
    const std::int64_t last = std::min(sample_row + rows.end, given.end);
    if (first >= last) return;
    const std::int64_t begin = (first - given.begin) * width;
    fast::dropout(dropout.key(sample), dropout.p, (first - sample_row) * width,
                  (last - first) * width, Elements(x) + begin, Elements(residual) + begin,
                  MutElements(out) + begin);
  });
}

}  // namespace

void dropout_forward(Queue& queue, const Dropout& dropout, std::int64_t rows_per_sample, View x,
                     View residual, MutView out) {
  masked(queue, "dropout_forward", dropout, rows_per_sample, x, residual, out);
}

void dropout_backward(Queue& queue, const Dropout& dropout, std::int64_t rows_per_sample, View dy,
                      MutView dx) {
  masked(queue, "dropout_backward", dropout, rows_per_sample, dy, View(), dx);
}

}  // namespace llm
