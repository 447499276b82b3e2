#include "tensor/ops/grouped_linear.h"

#include <algorithm>
#include <array>

#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

/// Weights that a tile turns on their side, or widens: 1 MiB stays in a core's cache.
constexpr std::int64_t slab_elements = 1 << 18;
/// Weights of bf16 that are multiplied in one piece: 8 MiB.
constexpr std::int64_t whole_elements = 1 << 22;
/// Rows of one product: a row's bits do not depend on whether they are 16 or 79.
constexpr std::int64_t block_rows = 64;
/// Rows that are widened at a time where a sum goes over rows.
constexpr std::int64_t deep_rows = 256;

enum class Slot : std::uint8_t { rows, weight, sums };

/// Scratch of one thread.
float* scratch(Slot slot, std::int64_t n) {
  static thread_local std::array<Scratch<float>, 3> slots;
  return at_least(slots.at(static_cast<std::size_t>(slot)), n);
}

bool multiplies_bf16(Dtype dtype) {
  return dtype == Dtype::bf16 && product_kernel() == ProductKernel::bf16;
}

/// What the tiles of one call go over. How many rows an expert has is known when they run, so there
/// are as many tiles as the rows may need however they fall to the experts; some find nothing to
/// do.
struct Cut {
  View begins;
  RowCut features;      ///< outputs of a product
  std::int64_t n_rows;  ///< of all experts
  std::int64_t rows_per_tile;

  std::int64_t n_experts() const { return begins.n_elements() - 1; }
  std::int64_t n_row_tiles() const { return n_rows / rows_per_tile + n_experts(); }
  std::int64_t n_tiles() const { return features.n_tiles() * n_row_tiles(); }
  Range rows_of(std::int64_t expert) const {
    const auto* const begin = begins.as<std::int32_t>() + expert;
    return {begin[0], begin[1]};
  }
};

struct Tile {
  std::int64_t expert = 0;
  Range rows;  ///< empty: nothing to do
  Range features;
};

/// Neighbouring tiles share weights.
Tile tile_of(const Cut& cut, std::int64_t index) {
  Tile tile;
  tile.features = cut.features.rows(index / cut.n_row_tiles());
  std::int64_t row_tile = index % cut.n_row_tiles();
  for (std::int64_t e = 0; e < cut.n_experts(); ++e) {
    const Range own = cut.rows_of(e);
    const RowCut rows{own.size(), cut.rows_per_tile, least_product_rows};
    if (row_tile < rows.n_tiles()) {
      const Range inside = rows.rows(row_tile);
      tile.expert = e;
      tile.rows = {own.begin + inside.begin, own.begin + inside.end};
      return tile;
    }
    row_tile -= rows.n_tiles();
  }
  return tile;
}

/// Outputs with `n_terms` terms each that a product has at most.
std::int64_t most_features(Dtype dtype, std::int64_t n_features, std::int64_t n_terms) {
  // The library packs weights of bf16 itself, and is faster when it has all of them.
  if (multiplies_bf16(dtype) && n_features * n_terms <= whole_elements) return n_features;
  return std::max<std::int64_t>(64, slab_elements / std::max<std::int64_t>(1, n_terms) / 64 * 64);
}

/// Slabs of outputs, and rows for a tile's worth of work.
Cut cut_products(const View& begins, Dtype dtype, std::int64_t n_rows, std::int64_t n_features,
                 std::int64_t n_terms) {
  const RowCut features{n_features,
                        std::max<std::int64_t>(1, most_features(dtype, n_features, n_terms)),
                        least_product_rows};
  const std::int64_t row_flops = 2 * n_terms * features.most_rows();
  const RowCut rows = multiplies_bf16(dtype) ? cut_by_bf16_flops(n_rows, row_flops, 1)
                                             : cut_by_flops(n_rows, row_flops);
  return {begins, features, n_rows, rows.rows_per_tile};
}

/// A matrix as f32 rows of scratch, or where it lies.
struct WideRows {
  const float* data;
  std::int64_t stride;
};
WideRows widened(Elements x, std::int64_t stride, std::int64_t n_rows, std::int64_t width,
                 Slot slot) {
  if (x.dtype == Dtype::f32) return {x.as<float>(), stride};
  float* copy = scratch(slot, n_rows * width);
  fast::convert_rows(x, stride, n_rows, width, copy, width);
  return {copy, width};
}

/// Products x B of some rows, with bits that do not depend on their number.
struct RowProducts {
  std::int64_t n_terms;
  const float* b;  ///< (n_terms, n_features)
  std::int64_t b_stride;
  std::int64_t n_features;

  /// sums (n, n_features) with `stride`; n is any number.
  void run(Elements x, std::int64_t n, float* sums, std::int64_t stride) const {
    const RowCut blocks{n, block_rows, least_product_rows};
    for (std::int64_t i = 0; i < blocks.n_tiles(); ++i) {
      const Range rows = blocks.rows(i);
      const Elements from = x + rows.begin * n_terms;
      float* const to = sums + rows.begin * stride;
      if (rows.size() >= least_product_rows) {
        const WideRows a = widened(from, n_terms, rows.size(), n_terms, Slot::rows);
        multiply(a.data, a.stride, rows.size(), to, stride);
      } else {
        run_padded(from, rows.size(), to, stride);
      }
    }
  }

 private:
  void multiply(const float* a, std::int64_t lda, std::int64_t n, float* c,
                std::int64_t ldc) const {
    matmul({.transpose_a = false,
            .transpose_b = false,
            .m = n,
            .n = n_features,
            .k = n_terms,
            .alpha = 1,
            .a = a,
            .lda = lda,
            .b = b,
            .ldb = b_stride,
            .beta = 0,
            .c = c,
            .ldc = ldc});
  }
  /// Together with rows of zeros they are as many as the library sums in one order.
  void run_padded(Elements x, std::int64_t n, float* sums, std::int64_t stride) const {
    float* const a = scratch(Slot::rows, least_product_rows * (n_terms + n_features));
    float* const c = a + least_product_rows * n_terms;
    fast::convert(x, a, n * n_terms);
    std::fill(a + n * n_terms, c, 0.0f);
    multiply(a, n_terms, least_product_rows, c, n_features);
    fast::convert_rows(c, n_features, n, n_features, sums, stride);
  }
};

/// A product of any number of rows, by numbers of which there are few: the library compiles each
/// shape anew, and how many rows an expert has differs from call to call. The rest of a block is
/// multiplied together with rows of zeros.
void multiply_bf16_rows(const MatmulBf16& product) {
  static thread_local std::array<Scratch<Bf16>, 2> slots;
  MatmulBf16 whole = product;
  whole.m = product.m / block_rows * block_rows;
  matmul(whole);
  const std::int64_t rest = product.m - whole.m;
  if (rest == 0) return;
  MatmulBf16 padded = product;
  padded.m = (rest + least_product_rows - 1) / least_product_rows * least_product_rows;
  Bf16* const a = at_least(slots[0], padded.m * product.k);
  Bf16* const c = at_least(slots[1], padded.m * product.n);
  padded.a = a;
  padded.lda = product.k;
  padded.c = c;
  padded.ldc = product.n;
  const Elements rows(product.a + whole.m * product.lda);
  const MutElements out = product.c + whole.m * product.ldc;
  fast::convert_rows(rows, product.lda, rest, product.k, a, product.k);
  std::fill(a + rest * product.k, a + padded.m * product.k, Bf16{});
  if (product.add) fast::convert_rows(out, product.ldc, rest, product.n, c, product.n);
  matmul(padded);
  fast::convert_rows(Elements(c), product.n, rest, product.n, out, product.ldc);
}

struct Forward {
  Cut cut;
  View x, weight, bias;
  MutView y;

  void run(const Tile& tile) const {
    const std::int64_t n_in = x.shape()[1];
    const std::int64_t n_out = y.shape()[1];
    const std::int64_t first = tile.expert * n_out + tile.features.begin;
    const std::int64_t n_features = tile.features.size();
    const Elements rows = Elements(x) + tile.rows.begin * n_in;
    const MutElements out = MutElements(y) + (tile.rows.begin * n_out + tile.features.begin);
    const float* const b = bias.empty() ? nullptr : bias.as<float>() + first;
    if (multiplies_bf16(x.dtype())) {
      multiply_bf16_rows({.transpose_a = false,
                          .transpose_b = true,
                          .m = tile.rows.size(),
                          .n = n_features,
                          .k = n_in,
                          .a = rows.as<Bf16>(),
                          .lda = n_in,
                          .b = weight.as<Bf16>() + first * n_in,
                          .ldb = n_in,
                          .bias = b,
                          .add = false,
                          .c = out,
                          .ldc = n_out});
      return;
    }
    float* const turned = scratch(Slot::weight, n_features * n_in);
    fast::transpose(Elements(weight) + first * n_in, n_in, n_features, n_in, turned, n_features);
    const bool in_place = out.dtype == Dtype::f32;
    float* const sums =
        in_place ? out.as<float>() : scratch(Slot::sums, tile.rows.size() * n_features);
    const std::int64_t stride = in_place ? n_out : n_features;
    RowProducts{n_in, turned, n_features, n_features}.run(rows, tile.rows.size(), sums, stride);
    for (std::int64_t r = 0; r < tile.rows.size() && b != nullptr; ++r) {
      fast::add(b, sums + r * stride, n_features);
    }
    if (!in_place) {
      fast::convert_rows(sums, stride, tile.rows.size(), n_features, out, n_out);
    }
  }
};

struct BackwardInput {
  Cut cut;
  View dy, weight;
  Write write;
  MutView dx;

  void run(const Tile& tile) const {
    const std::int64_t n_in = dx.shape()[1];
    const std::int64_t n_out = dy.shape()[1];
    const std::int64_t n_features = tile.features.size();
    const Elements rows = Elements(dy) + tile.rows.begin * n_out;
    const Elements w = Elements(weight) + (tile.expert * n_out * n_in + tile.features.begin);
    const MutElements out = MutElements(dx) + (tile.rows.begin * n_in + tile.features.begin);
    if (multiplies_bf16(dy.dtype())) {
      multiply_bf16_rows({.transpose_a = false,
                          .transpose_b = false,
                          .m = tile.rows.size(),
                          .n = n_features,
                          .k = n_out,
                          .a = rows.as<Bf16>(),
                          .lda = n_out,
                          .b = w.as<Bf16>(),
                          .ldb = n_in,
                          .bias = nullptr,
                          .add = write == Write::add,
                          .c = out,
                          .ldc = n_in});
      return;
    }
    const WideRows b = widened(w, n_in, n_out, n_features, Slot::weight);
    const RowProducts products{n_out, b.data, b.stride, n_features};
    if (out.dtype == Dtype::f32 && write == Write::set) {
      return products.run(rows, tile.rows.size(), out.as<float>(), n_in);
    }
    float* const sums = scratch(Slot::sums, tile.rows.size() * n_features);
    products.run(rows, tile.rows.size(), sums, n_features);
    const auto finish = write == Write::add ? fast::add : fast::convert;
    for (std::int64_t r = 0; r < tile.rows.size(); ++r) {
      finish(sums + r * n_features, out + r * n_in, n_features);
    }
  }
};

struct BackwardWeight {
  View begins, x, dy;
  Write write;
  MutView dweight, dbias;

  void run(std::int64_t expert, Range features) const {
    const std::int64_t n_in = x.shape()[1];
    const std::int64_t n_out = dy.shape()[1];
    const auto* const begin = begins.as<std::int32_t>() + expert;
    const std::int64_t n = begin[1] - begin[0];
    const Elements rows = Elements(x) + begin[0] * n_in;
    const Elements columns = Elements(dy) + (begin[0] * n_out + features.begin);
    const std::int64_t first = expert * n_out + features.begin;
    float* const dw = dweight.as<float>() + first * n_in;
    if (n == 0 && write == Write::set) {
      std::fill_n(dw, features.size() * n_in, 0.0f);
    } else if (n > 0) {
      add_product(rows, columns, n, features.size(), dw);
    }
    if (dbias.empty()) return;
    fast::sum_rows(columns, n, n_out, features.size(), write == Write::add,
                   dbias.as<float>() + first);
  }

 private:
  void add_product(Elements rows, Elements columns, std::int64_t n, std::int64_t n_features,
                   float* dw) const {
    const std::int64_t n_in = x.shape()[1];
    const std::int64_t n_out = dy.shape()[1];
    if (multiplies_bf16(x.dtype())) {
      matmul({.transpose_a = true,
              .transpose_b = false,
              .m = n_features,
              .n = n_in,
              .k = n,
              .a = columns.as<Bf16>(),
              .lda = n_out,
              .b = rows.as<Bf16>(),
              .ldb = n_in,
              .bias = nullptr,
              .add = write == Write::add,
              .c = dw,
              .ldc = n_in});
      return;
    }
    const std::int64_t at_once = x.dtype() == Dtype::f32 ? n : deep_rows;
    for (std::int64_t r = 0; r < n; r += at_once) {
      const std::int64_t n_some = std::min(at_once, n - r);
      const WideRows a = widened(columns + r * n_out, n_out, n_some, n_features, Slot::rows);
      const WideRows b = widened(rows + r * n_in, n_in, n_some, n_in, Slot::weight);
      matmul({.transpose_a = true,
              .transpose_b = false,
              .m = n_features,
              .n = n_in,
              .k = n_some,
              .alpha = 1,
              .a = a.data,
              .lda = a.stride,
              .b = b.data,
              .ldb = b.stride,
              .beta = write == Write::add || r > 0 ? 1.0f : 0.0f,
              .c = dw,
              .ldc = n_in});
    }
  }
};

/// Features of a tile of a weight's gradient, as if every expert had the same number of rows.
RowCut cut_weight(Dtype dtype, std::int64_t n_experts, std::int64_t n, std::int64_t n_in,
                  std::int64_t n_out) {
  const std::int64_t flops = 2 * n_in * std::max<std::int64_t>(1, n / n_experts);
  return multiplies_bf16(dtype) ? cut_weight_by_bf16_flops(n_out, flops)
                                : cut_by_flops(n_out, flops);
}

/// The number of experts.
std::int64_t check(const View& begins, const View& weight, std::int64_t n_in, std::int64_t n_out,
                   Dtype dtype) {
  const std::int64_t n_experts = begins.n_elements() - 1;
  CHECK_CONTRACT(n_experts > 0, "experts have a first row each, and the last one an end");
  expect_elements(begins, "begins", n_experts + 1, Dtype::i32);
  expect(weight, "weight", dtype, {n_experts * n_out, n_in});
  return n_experts;
}

template <typename Views>
void put(Queue& queue, const char* op, const Views& views) {
  queue.tiles(op, views.cut.n_tiles(), [views](std::int64_t index) {
    const Tile tile = tile_of(views.cut, index);
    if (!tile.rows.empty()) views.run(tile);
  });
}

}  // namespace

void grouped_linear_forward(Queue& queue, View begins, View x, View weight, View bias, MutView y) {
  const Dtype dtype = compute_dtype(x, "x");
  expect_matrix(x, "x", dtype);
  expect_matrix(y, "y", dtype);
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = y.shape()[1];
  const std::int64_t n_experts = check(begins, weight, n_in, n_out, dtype);
  expect(y, "y", dtype, {n, n_out});
  if (!bias.empty()) expect(bias, "bias", {n_experts * n_out});
  if (issued(queue, "grouped_linear_forward", &cuda::OpCalls::grouped_linear_forward, begins, x,
             weight, bias, y)) {
    return;
  }
  const Cut cut = cut_products(begins, dtype, n, n_out, n_in);
  put(queue, "grouped_linear_forward", Forward{cut, x, weight, bias, y});
}

void grouped_linear_backward_input(Queue& queue, View begins, View dy, View weight, Write write,
                                   MutView dx) {
  const Dtype dtype = compute_dtype(dy, "dy");
  expect_matrix(dy, "dy", dtype);
  expect_matrix(dx, "dx", dtype);
  const std::int64_t n = dy.shape()[0];
  const std::int64_t n_in = dx.shape()[1];
  const std::int64_t n_out = dy.shape()[1];
  check(begins, weight, n_in, n_out, dtype);
  expect(dx, "dx", dtype, {n, n_in});
  if (issued(queue, "grouped_linear_backward_input", &cuda::OpCalls::grouped_linear_backward_input,
             begins, dy, weight, write, dx)) {
    return;
  }
  const Cut cut = cut_products(begins, dtype, n, n_in, n_out);
  put(queue, "grouped_linear_backward_input", BackwardInput{cut, dy, weight, write, dx});
}

void grouped_linear_backward_weight(Queue& queue, View begins, View x, View dy, Write write,
                                    MutView dweight, MutView dbias) {
  const Dtype dtype = compute_dtype(x, "x");
  expect_matrix(x, "x", dtype);
  expect_matrix(dy, "dy", dtype);
  const std::int64_t n = x.shape()[0];
  const std::int64_t n_in = x.shape()[1];
  const std::int64_t n_out = dy.shape()[1];
  const std::int64_t n_experts = check(begins, dweight, n_in, n_out, Dtype::f32);
  expect(dy, "dy", dtype, {n, n_out});
  if (!dbias.empty()) expect(dbias, "dbias", {n_experts * n_out});
  if (issued(queue, "grouped_linear_backward_weight",
             &cuda::OpCalls::grouped_linear_backward_weight, begins, x, dy, write, dweight,
             dbias)) {
    return;
  }
  const BackwardWeight views{begins, x, dy, write, dweight, dbias};
  const RowCut cut = cut_weight(dtype, n_experts, n, n_in, n_out);
  queue.tiles("grouped_linear_backward_weight", n_experts * cut.n_tiles(), [=](std::int64_t tile) {
    views.run(tile / cut.n_tiles(), cut.rows(tile % cut.n_tiles()));
  });
}

namespace {

/// Elements of one product's slots: rows, weight, sums.
std::array<std::int64_t, 3> product_slots(Dtype dtype, std::int64_t n, std::int64_t n_features,
                                          std::int64_t n_terms, bool is_forward) {
  const Cut cut = cut_products(View(), dtype, n, n_features, n_terms);
  const std::int64_t width = cut.features.most_rows();
  const std::int64_t most_rows = RowCut{n, cut.rows_per_tile, least_product_rows}.most_rows();
  const bool widens = dtype != Dtype::f32;
  const std::int64_t padded = least_product_rows * (n_terms + width);
  const std::int64_t rows = widens ? std::min(n, block_rows + least_product_rows - 1) * n_terms : 0;
  const bool has_sums = widens || !is_forward;  // Write::add goes over them
  return {std::max(rows, padded), widens || is_forward ? width * n_terms : 0,
          has_sums ? most_rows * width : 0};
}

}  // namespace

OpScratch grouped_linear_scratch(Dtype dtype, std::int64_t n_experts, std::int64_t n,
                                 std::int64_t n_in, std::int64_t n_out) {
  if (multiplies_bf16(dtype)) {
    const std::int64_t width = std::max(n_in, n_out);
    return {.thread_bytes = 2 * block_rows * width * static_cast<std::int64_t>(sizeof(Bf16))};
  }
  const auto forward = product_slots(dtype, n, n_out, n_in, true);
  const auto backward = product_slots(dtype, n, n_in, n_out, false);
  std::int64_t elements = 0;
  const std::int64_t deep = dtype == Dtype::f32 ? 0 : std::min(n, deep_rows);
  const std::int64_t features = cut_weight(dtype, n_experts, n, n_in, n_out).most_rows();
  const std::array<std::int64_t, 3> weight{deep * features, deep * n_in, 0};
  for (std::size_t slot = 0; slot < weight.size(); ++slot) {
    elements += std::max({forward[slot], backward[slot], weight[slot]});
  }
  elements +=
      std::max(product_scratch_elements(
                   cut_products(View(), dtype, n, n_out, n_in).features.most_rows(), n_in),
               product_scratch_elements(
                   cut_products(View(), dtype, n, n_in, n_out).features.most_rows(), n_out));
  return {.thread_bytes = elements * static_cast<std::int64_t>(sizeof(float))};
}

}  // namespace llm
