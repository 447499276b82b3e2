#include "tensor/ops/linear.h"

#include <algorithm>
#include <memory>

#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

/// Weights turned on their side at a time: 4 MiB stay in the caches of most machines.
constexpr std::int64_t slab_elements = 1 << 20;

struct Forward {
  View x, weight, bias;
  MutView y;
};

/// y[rows, features] = x W^T + b; `turned` is W^T of these features.
void forward_tile(const Forward& v, Range rows, Range features, const float* turned) {
  const std::int64_t n_in = v.x.shape()[1];
  const std::int64_t n_out = v.y.shape()[1];
  float* y = v.y.as<float>() + rows.begin * n_out + features.begin;
  matmul({.transpose_a = false,
          .transpose_b = false,
          .m = rows.size(),
          .n = features.size(),
          .k = n_in,
          .alpha = 1,
          .a = v.x.as<float>() + rows.begin * n_in,
          .lda = n_in,
          .b = turned,
          .ldb = features.size(),
          .beta = 0,
          .c = y,
          .ldc = n_out});
  if (v.bias.empty()) return;
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    fast::add(v.bias.as<float>() + features.begin, y + r * n_out, features.size());
  }
}

}  // namespace

// oneDNN turns W for each product with W^T, which costs a third of a tile's time: turned once it
// serves every tile. The number of rows does not decide this, since the two products differ in
// their bits.
void linear_forward(Queue& queue, View x, View weight, View bias, MutView y) {
  expect_matrix(x, "x");
  expect_matrix(weight, "weight");
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  expect(weight, "weight", {n_out, n_in});
  if (!bias.empty()) expect(bias, "bias", {n_out});
  expect(y, "y", {n, n_out});
  const Forward views{x, weight, bias, y};
  const std::int64_t slab = slab_elements / std::max<std::int64_t>(1, n_in) / 64 * 64;
  const RowCut slabs{n_out, std::max<std::int64_t>(64, slab), least_product_rows};
  for (std::int64_t i = 0; i < slabs.n_tiles(); ++i) {
    const Range features = slabs.rows(i);
    const RowCut cut = cut_by_flops(n, 2 * n_in * features.size());
    const auto turned = std::make_shared<std::unique_ptr<float[]>>();
    queue.work("linear_transpose", [=] {
      *turned =
          std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(features.size() * n_in));
      fast::transpose(weight.as<float>() + features.begin * n_in, n_in, features.size(), n_in,
                      turned->get(), features.size());
    });
    queue.tiles("linear_forward", cut.n_tiles(), [=](std::int64_t tile) {
      forward_tile(views, cut.rows(tile), features, turned->get());
    });
  }
}

void linear_backward_input(Queue& queue, View dy, View weight, Write write, MutView dx) {
  expect_matrix(dy, "dy");
  expect_matrix(weight, "weight");
  const std::int64_t n = dy.shape()[0];
  const std::int64_t n_in = weight.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  expect(dy, "dy", {n, n_out});
  expect(dx, "dx", {n, n_in});
  const RowCut cut = cut_by_flops(n, 2 * n_in * n_out);
  queue.tiles("linear_backward_input", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    matmul({.transpose_a = false,
            .transpose_b = false,
            .m = rows.size(),
            .n = n_in,
            .k = n_out,
            .alpha = 1,
            .a = dy.as<float>() + rows.begin * n_out,
            .lda = n_out,
            .b = weight.as<float>(),
            .ldb = n_in,
            .beta = write == Write::add ? 1.0f : 0.0f,
            .c = dx.as<float>() + rows.begin * n_in,
            .ldc = n_in});
  });
}

void linear_backward_weight(Queue& queue, View x, View dy, Write write, MutView dweight,
                            MutView dbias) {
  expect_matrix(x, "x");
  expect_matrix(dy, "dy");
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = dy.shape()[1];
  expect(dy, "dy", {n, n_out});
  expect(dweight, "dweight", {n_out, n_in});
  if (!dbias.empty()) expect(dbias, "dbias", {n_out});
  const RowCut cut = cut_by_flops(n_out, 2 * n_in * n);
  queue.tiles("linear_backward_weight", cut.n_tiles(), [=](std::int64_t tile) {
    const Range features = cut.rows(tile);
    const float* dy_columns = dy.as<float>() + features.begin;
    matmul({.transpose_a = true,
            .transpose_b = false,
            .m = features.size(),
            .n = n_in,
            .k = n,
            .alpha = 1,
            .a = dy_columns,
            .lda = n_out,
            .b = x.as<float>(),
            .ldb = n_in,
            .beta = write == Write::add ? 1.0f : 0.0f,
            .c = dweight.as<float>() + features.begin * n_in,
            .ldc = n_in});
    if (!dbias.empty()) {
      fast::sum_rows(dy_columns, n, n_out, features.size(), write == Write::add,
                     dbias.as<float>() + features.begin);
    }
  });
}

}  // namespace llm
