#include "tensor/ops/linear.h"

#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/tiles.h"

namespace llm {

void linear_forward(Queue& queue, View x, View weight, View bias, MutView y) {
  expect_matrix(x, "x");
  expect_matrix(weight, "weight");
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  expect(weight, "weight", {n_out, n_in});
  if (!bias.empty()) expect(bias, "bias", {n_out});
  expect(y, "y", {n, n_out});
  const RowCut cut = cut_by_flops(n, 2 * n_in * n_out);
  queue.tiles("linear_forward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    float* y_rows = y.as<float>() + rows.begin * n_out;
    matmul({.transpose_a = false,
            .transpose_b = true,
            .m = rows.size(),
            .n = n_out,
            .k = n_in,
            .alpha = 1,
            .a = x.as<float>() + rows.begin * n_in,
            .lda = n_in,
            .b = weight.as<float>(),
            .ldb = n_in,
            .beta = 0,
            .c = y_rows,
            .ldc = n_out});
    if (!bias.empty()) fast::add_rows(bias.as<float>(), y_rows, rows.size(), n_out);
  });
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
