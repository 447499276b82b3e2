#include "tensor/ops/elementwise.h"

#include <algorithm>
#include <cstring>

#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/rounding.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace plain {

void add(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void add_rows(const float* bias, float* y, std::int64_t n_rows, std::int64_t width) {
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) y[r * width + c] += bias[c];
  }
}

void sum_rows(const float* y, std::int64_t n_rows, std::int64_t stride, std::int64_t width,
              bool accumulate, float* out) {
  for (std::int64_t c = 0; c < width; ++c) {
    float sum = 0;
    for (std::int64_t r = 0; r < n_rows; ++r) sum += y[r * stride + c];
    out[c] = accumulate ? out[c] + sum : sum;
  }
}

void transpose(const float* x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
               float* out, std::int64_t out_stride) {
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for (std::int64_t c = 0; c < n_columns; ++c) out[c * out_stride + r] = x[r * stride + c];
  }
}

}  // namespace plain

void copy(Queue& queue, View x, MutView y) {
  CHECK_CONTRACT(x.dtype() == y.dtype() && x.n_elements() == y.n_elements(),
                 "a copy has the dtype and the size of its source");
  if (queue.device() == Device::cuda) {
    queue.issue("copy", [x, y](cudaStream_t stream) {
      cuda::module().runtime.copy(stream, x.data(), y.data(), x.n_bytes());
    });
    return;
  }
  expect_on(Device::cpu, x, "copy");
  expect_on(Device::cpu, y, "copy");
  const std::int64_t element = static_cast<std::int64_t>(size_of(x.dtype()));
  const RowCut cut = cut_by_bytes(x.n_elements(), 2 * element);
  queue.tiles("copy", cut.n_tiles(), [=](std::int64_t tile) {
    const Range range = cut.rows(tile);
    std::memcpy(static_cast<char*>(y.data()) + range.begin * element,
                static_cast<const char*>(x.data()) + range.begin * element,
                static_cast<std::size_t>(range.size() * element));
  });
}

void convert(Queue& queue, View x, MutView y) {
  expect_elements(x, "x", y.n_elements(), compute_dtype(x, "x"));
  expect_elements(y, "y", y.n_elements(), compute_dtype(y, "y"));
  if (issued(queue, "convert", &cuda::OpCalls::convert, x, y)) return;
  const RowCut cut = cut_by_bytes(x.n_elements(), 8);
  queue.tiles("convert", cut.n_tiles(), [=](std::int64_t tile) {
    const Range range = cut.rows(tile);
    fast::convert(Elements(x) + range.begin, MutElements(y) + range.begin, range.size());
  });
}

void fill(Queue& queue, float value, MutView y) {
  expect_elements(y, "y", y.n_elements(), compute_dtype(y, "y"));
  if (issued(queue, "fill", &cuda::OpCalls::fill, value, y)) return;
  const RowCut cut = cut_by_bytes(y.n_elements(), 4);
  queue.tiles("fill", cut.n_tiles(), [=](std::int64_t tile) {
    const Range range = cut.rows(tile);
    with_type_of(y.dtype(), [&](auto type) {
      using T = decltype(type);
      std::fill(y.as<T>() + range.begin, y.as<T>() + range.end, round_to<T>(value));
    });
  });
}

void add(Queue& queue, View x, MutView y) {
  expect_elements(x, "x", x.n_elements(), compute_dtype(x, "x"));
  expect_elements(y, "y", x.n_elements(), compute_dtype(y, "y"));
  if (issued(queue, "add", &cuda::OpCalls::add, x, y)) return;
  const RowCut cut = cut_by_bytes(x.n_elements(), 12);
  queue.tiles("add", cut.n_tiles(), [=](std::int64_t tile) {
    const Range range = cut.rows(tile);
    fast::add(Elements(x) + range.begin, MutElements(y) + range.begin, range.size());
  });
}

void add_rows(Queue& queue, View bias, MutView y) {
  expect_matrix(y, "y", compute_dtype(y, "y"));
  const std::int64_t width = y.shape()[1];
  expect(bias, "bias", {width});
  if (issued(queue, "add_rows", &cuda::OpCalls::add_rows, bias, y)) return;
  const RowCut cut = cut_by_bytes(y.shape()[0], 8 * width);
  queue.tiles("add_rows", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    fast::add_rows(bias.as<float>(), MutElements(y) + rows.begin * width, rows.size(), width);
  });
}

}  // namespace llm
