#include "tensor/ops/linear_bf16.h"

#include <algorithm>
#include <memory>

#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/scratch.h"
#include "tensor/ops/tiles.h"

// The library takes weights as they lie: to pack them first gains 3 % of a product and costs 4 % of
// it, at 2,048 rows. What it does need is 128 rows and better 256 at a time, and weights that stay
// in the caches while it goes over the rows.
namespace llm::bf16 {
namespace {

/// Weights that tiles go over at a time: 2 MiB.
constexpr std::int64_t slab_elements = 1 << 20;
/// Up to here all of them at a time: the library's faster kernel writes whole rows only.
constexpr std::int64_t whole_elements = 4 * slab_elements;
/// Weights from here on are multiplied slab by slab also along their outputs, which are summed.
constexpr std::int64_t deep_elements = 8 * slab_elements;

RowCut slabs_of(std::int64_t n_out, std::int64_t n_in) {
  if (n_in * n_out <= whole_elements) return {n_out, std::max<std::int64_t>(1, n_out)};
  const std::int64_t slab = slab_elements / n_in / 64 * 64;
  return {n_out, std::max<std::int64_t>(64, slab), least_product_rows};
}

}  // namespace

void linear_forward(Queue& queue, View x, View weight, View bias, MutView y) {
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  const RowCut slabs = slabs_of(n_out, n_in);
  for (std::int64_t i = 0; i < slabs.n_tiles(); ++i) {
    const Range features = slabs.rows(i);
    const RowCut cut =
        cut_by_bf16_flops(x.shape()[0], 2 * n_in * features.size(), queue.n_threads());
    queue.tiles("linear_forward", cut.n_tiles(), [=](std::int64_t tile) {
      const Range rows = cut.rows(tile);
      matmul({.transpose_a = false,
              .transpose_b = true,
              .m = rows.size(),
              .n = features.size(),
              .k = n_in,
              .a = x.as<Bf16>() + rows.begin * n_in,
              .lda = n_in,
              .b = weight.as<Bf16>() + features.begin * n_in,
              .ldb = n_in,
              .bias = bias.empty() ? nullptr : bias.as<float>() + features.begin,
              .add = false,
              .c = MutElements(y) + (rows.begin * n_out + features.begin),
              .ldc = n_out});
    });
  }
}

namespace {

/// dx = (or +=) dy[:, outputs] W[outputs, :], row by row.
struct InputProduct {
  View dy, weight;
  Range outputs;
  bool add;

  void run(Range rows, MutElements dx) const {
    const std::int64_t n_in = weight.shape()[1];
    const std::int64_t n_out = weight.shape()[0];
    matmul({.transpose_a = false,
            .transpose_b = false,
            .m = rows.size(),
            .n = n_in,
            .k = outputs.size(),
            .a = dy.as<Bf16>() + (rows.begin * n_out + outputs.begin),
            .lda = n_out,
            .b = weight.as<Bf16>() + outputs.begin * n_in,
            .ldb = n_in,
            .bias = nullptr,
            .add = add,
            .c = dx + rows.begin * n_in,
            .ldc = n_in});
  }
};

/// Sums over slabs of outputs in f32, which the last slab's tiles round into dx.
void put_deep_input(Queue& queue, const View& dy, const View& weight, Write write,
                    const MutView& dx) {
  const std::int64_t n = dx.shape()[0];
  const std::int64_t n_in = dx.shape()[1];
  const auto sums = std::make_shared<Scratch<float>>();
  queue.work("linear_allocate", [=] { at_least(*sums, n * n_in); });
  const RowCut slabs = slabs_of(weight.shape()[0], n_in);
  for (std::int64_t i = 0; i < slabs.n_tiles(); ++i) {
    const InputProduct product{dy, weight, slabs.rows(i), i > 0};
    const bool is_last = i + 1 == slabs.n_tiles();
    const RowCut cut = cut_by_bf16_flops(n, 2 * n_in * product.outputs.size(), queue.n_threads());
    queue.tiles("linear_backward_input", cut.n_tiles(), [=](std::int64_t tile) {
      const Range rows = cut.rows(tile);
      product.run(rows, sums->data());
      if (!is_last) return;
      const auto finish = write == Write::add ? fast::add : fast::convert;
      const std::int64_t begin = rows.begin * n_in;
      finish(sums->data() + begin, MutElements(dx) + begin, rows.size() * n_in);
    });
  }
}

}  // namespace

void linear_backward_input(Queue& queue, View dy, View weight, Write write, MutView dx) {
  const std::int64_t n_in = weight.shape()[1];
  const std::int64_t n_out = weight.shape()[0];
  if (n_in * n_out >= deep_elements) return put_deep_input(queue, dy, weight, write, dx);
  const InputProduct product{dy, weight, {0, n_out}, write == Write::add};
  const RowCut cut = cut_by_bf16_flops(dy.shape()[0], 2 * n_in * n_out, queue.n_threads());
  queue.tiles("linear_backward_input", cut.n_tiles(),
              [=](std::int64_t tile) { product.run(cut.rows(tile), dx); });
}

void linear_backward_weight(Queue& queue, View x, View dy, Write write, MutView dweight,
                            MutView dbias) {
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = dy.shape()[1];
  const RowCut cut = cut_weight_by_bf16_flops(n_out, 2 * n_in * n);
  queue.tiles("linear_backward_weight", cut.n_tiles(), [=](std::int64_t tile) {
    const Range features = cut.rows(tile);
    const Bf16* columns = dy.as<Bf16>() + features.begin;
    matmul({.transpose_a = true,
            .transpose_b = false,
            .m = features.size(),
            .n = n_in,
            .k = n,
            .a = columns,
            .lda = n_out,
            .b = x.as<Bf16>(),
            .ldb = n_in,
            .bias = nullptr,
            .add = write == Write::add,
            .c = MutElements(dweight) + features.begin * n_in,
            .ldc = n_in});
    if (dbias.empty()) return;
    fast::sum_rows(columns, n, n_out, features.size(), write == Write::add,
                   dbias.as<float>() + features.begin);
  });
}

OpScratch linear_scratch(std::int64_t n, std::int64_t n_in, std::int64_t n_out) {
  const auto element = static_cast<std::int64_t>(sizeof(float));
  return {.shared_bytes = n_in * n_out >= deep_elements ? n * n_in * element : 0};
}

}  // namespace llm::bf16
