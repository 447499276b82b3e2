#include "tensor/ops/expert_rows.h"

#include <algorithm>
#include <cstring>

#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

void put_in_order(const View& bounds, const MutView& begins, const MutView& order) {
  const std::int64_t n_ranks = bounds.shape()[0];
  const std::int64_t width = bounds.shape()[1];
  const auto* const bound = bounds.as<std::int32_t>();
  auto* const begin = begins.as<std::int32_t>();
  auto* const place = order.as<std::int32_t>();
  std::int32_t n = 0;
  for (std::int64_t e = 0; e + 1 < width; ++e) {
    begin[e] = n;
    std::int32_t first = 0;  // of the rank's rows
    for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
      const std::int32_t* const of_rank = bound + rank * width;
      for (std::int32_t row = of_rank[e]; row < of_rank[e + 1]; ++row) {
        CHECK_CONTRACT(n < order.n_elements(), "no more rows come than there is room for");
        place[n++] = first + row - of_rank[0];
      }
      first += of_rank[width - 1] - of_rank[0];
    }
  }
  begin[width - 1] = n;
}

enum class Way : bool { by_expert, by_rank };

void move_rows(Queue& queue, const char* op, Way way, View begins, View order, View x, MutView y) {
  expect_matrix(x, "x", x.dtype());
  expect(y, "y", x.dtype(), x.shape());
  expect_elements(order, "order", x.shape()[0], Dtype::i32);
  const std::int64_t width = x.shape()[1];
  const auto bytes = static_cast<std::size_t>(width) * size_of(x.dtype());
  const auto call =
      way == Way::by_expert ? &cuda::OpCalls::rows_by_expert : &cuda::OpCalls::rows_by_rank;
  if (issued(queue, op, call, begins, order, x, y)) return;
  const RowCut cut = cut_by_bytes(x.shape()[0], 8 * width);
  queue.tiles(op, cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    const std::int64_t n = begins.as<std::int32_t>()[begins.n_elements() - 1];
    for (std::int64_t r = rows.begin; r < std::min(rows.end, n); ++r) {
      const std::int64_t place = order.as<std::int32_t>()[r];
      const std::int64_t from = way == Way::by_expert ? place : r;
      const std::int64_t to = way == Way::by_expert ? r : place;
      std::memcpy((MutElements(y) + to * width).data, (Elements(x) + from * width).data, bytes);
    }
  });
}

}  // namespace

void order_by_expert(Queue& queue, View bounds, MutView begins, MutView order) {
  expect_matrix(bounds, "bounds", Dtype::i32);
  expect_elements(begins, "begins", bounds.shape()[1], Dtype::i32);
  expect_elements(order, "order", order.n_elements(), Dtype::i32);
  if (issued(queue, "order_by_expert", &cuda::OpCalls::order_by_expert, bounds, begins, order))
    return;
  queue.work("order_by_expert", [=] { put_in_order(bounds, begins, order); });
}

void rows_by_expert(Queue& queue, View begins, View order, View by_rank, MutView by_expert) {
  move_rows(queue, "rows_by_expert", Way::by_expert, begins, order, by_rank, by_expert);
}

void rows_by_rank(Queue& queue, View begins, View order, View by_expert, MutView by_rank) {
  move_rows(queue, "rows_by_rank", Way::by_rank, begins, order, by_expert, by_rank);
}

}  // namespace llm
