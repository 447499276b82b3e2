#include "tensor/ops/linear.h"

#include <algorithm>
#include <array>
#include <memory>

#include "tensor/cuda/issue.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/linear_bf16.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/scratch.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

/// Weights turned on their side at a time: 4 MiB stay in the caches of most machines.
constexpr std::int64_t slab_elements = 1 << 20;

RowCut slabs_of(std::int64_t n_out, std::int64_t n_in) {
  const std::int64_t slab = slab_elements / std::max<std::int64_t>(1, n_in) / 64 * 64;
  return {n_out, std::max<std::int64_t>(64, slab), least_product_rows};
}

/// f32 elements that one tile makes and others read.
using Shared = std::shared_ptr<Scratch<float>>;

Shared put_allocation(Queue& queue, std::int64_t n_elements) {
  auto elements = std::make_shared<Scratch<float>>();
  queue.work("linear_allocate", [=] { at_least(*elements, n_elements); });
  return elements;
}

/// A matrix as f32: itself, or a copy that tiles of `queue` make and that lives as long as this.
class WideMatrix {
 public:
  WideMatrix(Queue& queue, const View& x) : x_(x) {
    if (x.dtype() == Dtype::f32) return;
    copy_ = put_allocation(queue, x.n_elements());
    const RowCut cut = cut_by_bytes(x.n_elements(), 6);
    queue.tiles("linear_widen", cut.n_tiles(), [x, cut, copy = copy_](std::int64_t tile) {
      const Range range = cut.rows(tile);
      fast::convert(Elements(x) + range.begin, copy->data() + range.begin, range.size());
    });
  }
  const float* data() const { return copy_ ? copy_->data() : x_.as<float>(); }

 private:
  View x_;
  Shared copy_;
};

enum class Slot : std::uint8_t { input, output };

/// Scratch of one thread.
float* scratch(Slot slot, std::int64_t n) {
  static thread_local std::array<Scratch<float>, 2> slots;
  return at_least(slots.at(static_cast<std::size_t>(slot)), n);
}

/// Rows or columns of a matrix as f32: in place, or a copy in scratch.
struct WideBlock {
  const float* data;
  std::int64_t stride;
};
WideBlock widened(Elements x, std::int64_t stride, std::int64_t n_rows, std::int64_t width) {
  if (x.dtype == Dtype::f32) return {x.as<float>(), stride};
  float* copy = scratch(Slot::input, n_rows * width);
  fast::convert_rows(x, stride, n_rows, width, copy, width);
  return {copy, width};
}

struct Forward {
  View x, weight, bias;
  MutView y;
};

/// y[rows, features] = x W^T + b; `turned` is W^T of these features.
void forward_tile(const Forward& v, Range rows, Range features, const float* turned) {
  const std::int64_t n_in = v.x.shape()[1];
  const std::int64_t n_out = v.y.shape()[1];
  const WideBlock x = widened(Elements(v.x) + rows.begin * n_in, n_in, rows.size(), n_in);
  const MutElements y = MutElements(v.y) + (rows.begin * n_out + features.begin);
  const bool in_place = y.dtype == Dtype::f32;
  float* sums = in_place ? y.as<float>() : scratch(Slot::output, rows.size() * features.size());
  const std::int64_t stride = in_place ? n_out : features.size();
  matmul({.transpose_a = false,
          .transpose_b = false,
          .m = rows.size(),
          .n = features.size(),
          .k = n_in,
          .alpha = 1,
          .a = x.data,
          .lda = x.stride,
          .b = turned,
          .ldb = features.size(),
          .beta = 0,
          .c = sums,
          .ldc = stride});
  for (std::int64_t r = 0; r < rows.size() && !v.bias.empty(); ++r) {
    fast::add(v.bias.as<float>() + features.begin, sums + r * stride, features.size());
  }
  if (!in_place) fast::convert_rows(sums, stride, rows.size(), features.size(), y, n_out);
}

struct BackwardInput {
  View dy;
  WideMatrix weight;
  Write write;
  MutView dx;
};

void backward_input_tile(const BackwardInput& v, Range rows) {
  const std::int64_t n_in = v.dx.shape()[1];
  const std::int64_t n_out = v.dy.shape()[1];
  const WideBlock dy = widened(Elements(v.dy) + rows.begin * n_out, n_out, rows.size(), n_out);
  const MutElements dx = MutElements(v.dx) + rows.begin * n_in;
  const bool in_place = dx.dtype == Dtype::f32;
  float* sums = in_place ? dx.as<float>() : scratch(Slot::output, rows.size() * n_in);
  matmul({.transpose_a = false,
          .transpose_b = false,
          .m = rows.size(),
          .n = n_in,
          .k = n_out,
          .alpha = 1,
          .a = dy.data,
          .lda = dy.stride,
          .b = v.weight.data(),
          .ldb = n_in,
          .beta = in_place && v.write == Write::add ? 1.0f : 0.0f,
          .c = sums,
          .ldc = n_in});
  if (in_place) return;
  if (v.write == Write::add) {
    fast::add(sums, dx, rows.size() * n_in);
  } else {
    fast::convert(sums, dx, rows.size() * n_in);
  }
}

struct BackwardWeight {
  WideMatrix x;
  View dy;
  Write write;
  MutView dweight, dbias;
};

void backward_weight_tile(const BackwardWeight& v, Range features) {
  const std::int64_t n = v.dy.shape()[0];
  const std::int64_t n_out = v.dy.shape()[1];
  const std::int64_t n_in = v.dweight.shape()[1];
  const Elements columns = Elements(v.dy) + features.begin;
  const WideBlock dy = widened(columns, n_out, n, features.size());
  matmul({.transpose_a = true,
          .transpose_b = false,
          .m = features.size(),
          .n = n_in,
          .k = n,
          .alpha = 1,
          .a = dy.data,
          .lda = dy.stride,
          .b = v.x.data(),
          .ldb = n_in,
          .beta = v.write == Write::add ? 1.0f : 0.0f,
          .c = v.dweight.as<float>() + features.begin * n_in,
          .ldc = n_in});
  if (v.dbias.empty()) return;
  fast::sum_rows(dy.data, n, dy.stride, features.size(), v.write == Write::add,
                 v.dbias.as<float>() + features.begin);
}

/// y = W x + b of one row: each weight is read once, where it lies.
void forward_row(Queue& queue, const Forward& v) {
  const std::int64_t n_in = v.x.shape()[1];
  const RowCut cut = cut_by_bytes(v.y.shape()[1], 4 * n_in);
  queue.tiles("linear_row", cut.n_tiles(), [=](std::int64_t tile) {
    const Range features = cut.rows(tile);
    float* const y = v.y.as<float>() + features.begin;
    matmul({.transpose_a = false,
            .transpose_b = false,
            .m = features.size(),
            .n = 1,
            .k = n_in,
            .alpha = 1,
            .a = v.weight.as<float>() + features.begin * n_in,
            .lda = n_in,
            .b = v.x.as<float>(),
            .ldb = 1,
            .beta = 0,
            .c = y,
            .ldc = 1});
    if (!v.bias.empty()) fast::add(v.bias.as<float>() + features.begin, y, features.size());
  });
}

/// Whether a call goes to linear_bf16.h.
bool multiplies_bf16(Dtype dtype, std::int64_t n_terms) {
  return dtype == Dtype::bf16 && n_terms > 0 && product_kernel() == ProductKernel::bf16;
}

}  // namespace

// oneDNN turns W for each product with W^T, which costs a third of a tile's time: turned once it
// serves every tile. The number of rows does not decide this, since the two products differ in
// their bits.
void linear_forward(Queue& queue, View x, View weight, View bias, MutView y) {
  const Dtype dtype = compute_dtype(x, "x");
  expect_matrix(x, "x", dtype);
  expect_matrix(weight, "weight", dtype);
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  expect(weight, "weight", dtype, {n_out, n_in});
  if (!bias.empty()) expect(bias, "bias", {n_out});
  expect(y, "y", y.dtype() == Dtype::f32 ? Dtype::f32 : dtype, {n, n_out});
  if (issued(queue, "linear_forward", &cuda::OpCalls::linear_forward, x, weight, bias, y)) return;
  if (multiplies_bf16(dtype, n_in)) return bf16::linear_forward(queue, x, weight, bias, y);
  const Forward views{x, weight, bias, y};
  if (n == 1 && dtype == Dtype::f32) return forward_row(queue, views);
  const RowCut slabs = slabs_of(n_out, n_in);
  for (std::int64_t i = 0; i < slabs.n_tiles(); ++i) {
    const Range features = slabs.rows(i);
    const RowCut cut = cut_by_flops(n, 2 * n_in * features.size());
    const auto turned = std::make_shared<Scratch<float>>();
    queue.work("linear_transpose", [=] {
      fast::transpose(Elements(weight) + features.begin * n_in, n_in, features.size(), n_in,
                      at_least(*turned, features.size() * n_in), features.size());
    });
    queue.tiles("linear_forward", cut.n_tiles(), [=](std::int64_t tile) {
      forward_tile(views, cut.rows(tile), features, turned->data());
    });
  }
}

void linear_gelu_tanh(Queue& queue, View x, View weight, View bias, MutView up, MutView hidden,
                      Hidden use) {
  const Dtype dtype = compute_dtype(x, "x");
  expect_matrix(x, "x", dtype);
  expect_matrix(weight, "weight", dtype);
  const Shape outputs{x.shape()[0], weight.shape()[0]};
  expect(weight, "weight", dtype, {outputs[1], x.shape()[1]});
  if (!bias.empty()) expect(bias, "bias", {outputs[1]});
  expect(up, "up", dtype, outputs);
  expect(hidden, "hidden", dtype, outputs);
  if (issued(queue, "linear_gelu_tanh", &cuda::OpCalls::linear_gelu_tanh, x, weight, bias, up,
             hidden, use))
    return;
  linear_forward(queue, x, weight, bias, up);
  if (use == Hidden::wanted) activation_forward(queue, Activation::gelu_tanh, up, hidden);
}

void linear_backward_input(Queue& queue, View dy, View weight, Write write, MutView dx) {
  const Dtype dtype = compute_dtype(dy, "dy");
  expect_matrix(dy, "dy", dtype);
  expect_matrix(weight, "weight", dtype);
  const std::int64_t n = dy.shape()[0];
  const std::int64_t n_in = weight.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  expect(dy, "dy", dtype, {n, n_out});
  expect(dx, "dx", dtype, {n, n_in});
  if (issued(queue, "linear_backward_input", &cuda::OpCalls::linear_backward_input, dy, weight,
             write, dx))
    return;
  if (multiplies_bf16(dtype, n_out)) {
    return bf16::linear_backward_input(queue, dy, weight, write, dx);
  }
  const BackwardInput views{dy, WideMatrix(queue, weight), write, dx};
  const RowCut cut = cut_by_flops(n, 2 * n_in * n_out);
  queue.tiles("linear_backward_input", cut.n_tiles(),
              [=](std::int64_t tile) { backward_input_tile(views, cut.rows(tile)); });
}

void linear_backward_weight(Queue& queue, View x, View dy, Write write, MutView dweight,
                            MutView dbias) {
  const Dtype dtype = compute_dtype(x, "x");
  expect_matrix(x, "x", dtype);
  expect_matrix(dy, "dy", dtype);
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = dy.shape()[1];
  expect(dy, "dy", dtype, {n, n_out});
  expect(dweight, "dweight", {n_out, n_in});
  if (!dbias.empty()) expect(dbias, "dbias", {n_out});
  if (issued(queue, "linear_backward_weight", &cuda::OpCalls::linear_backward_weight, x, dy, write,
             dweight, dbias))
    return;
  if (multiplies_bf16(dtype, n)) {
    return bf16::linear_backward_weight(queue, x, dy, write, dweight, dbias);
  }
  const BackwardWeight views{WideMatrix(queue, x), dy, write, dweight, dbias};
  const RowCut cut = cut_by_flops(n_out, 2 * n_in * n);
  queue.tiles("linear_backward_weight", cut.n_tiles(),
              [=](std::int64_t tile) { backward_weight_tile(views, cut.rows(tile)); });
}

OpScratch linear_scratch(Dtype dtype, std::int64_t n, std::int64_t n_in, std::int64_t n_out) {
  if (multiplies_bf16(dtype, n)) return bf16::linear_scratch(n, n_in, n_out);
  const std::int64_t slab = slabs_of(n_out, n_in).most_rows();
  const std::int64_t forward_rows = cut_by_flops(n, 2 * n_in * slab).most_rows();
  OpScratch elements{.shared_bytes = slab * n_in};
  if (dtype != Dtype::f32) {
    const std::int64_t rows = cut_by_flops(n, 2 * n_in * n_out).most_rows();
    const std::int64_t features = cut_by_flops(n_out, 2 * n_in * n).most_rows();
    elements.shared_bytes = std::max({elements.shared_bytes, n_in * n_out, n * n_in});
    elements.thread_bytes = std::max({forward_rows * n_in, rows * n_out, n * features}) +
                            std::max(forward_rows * slab, rows * n_in);
  }
  elements.thread_bytes += std::max(product_scratch_elements(slab, n_in),  // forward
                                    product_scratch_elements(n_in, n_out));
  const auto element = static_cast<std::int64_t>(sizeof(float));
  return {elements.shared_bytes * element, elements.thread_bytes * element};
}

}  // namespace llm
