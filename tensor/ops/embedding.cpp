#include "tensor/ops/embedding.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "src/base/error.h"
#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

/// The row of the table that token number `i` names.
std::int64_t checked_row(const std::int32_t* tokens, std::int64_t i, std::int64_t n_rows) {
  const std::int64_t id = tokens[i];
  if (id < 0 || id >= n_rows) {
    throw DataError(
        "token " + std::to_string(i) + " of the batch has the id " + std::to_string(id) +
        ", but the vocabulary has " + std::to_string(n_rows) +
        " ids: the data was made by another tokenizer, or model.vocab_size is too small");
  }
  return id;
}

/// The row of this rank's part that the token names; -1 where it is another's.
std::int64_t row_of_part(const std::int32_t* tokens, std::int64_t i, const TablePart& part,
                         std::int64_t n_own) {
  const std::int64_t row = checked_row(tokens, i, part.n_rows) - part.first_row;
  return row < 0 || row >= n_own ? -1 : row;
}

/// Columns [columns.begin, columns.end) of every row of dy, added to the rows of the tables.
void scatter_columns(const View& tokens, const View& dy, std::int64_t seq_len, Range columns,
                     const MutView& dtable, const MutView& dpositions, const TablePart& part) {
  const std::int64_t width = dy.shape()[1];
  for (std::int64_t i = 0; i < tokens.n_elements(); ++i) {
    const Elements row = Elements(dy) + (i * width + columns.begin);
    if (!dtable.empty()) {
      const std::int64_t id = row_of_part(tokens.as<std::int32_t>(), i, part, dtable.shape()[0]);
      if (id >= 0) fast::add(row, dtable.as<float>() + id * width + columns.begin, columns.size());
    }
    if (dpositions.empty()) continue;
    fast::add(row, dpositions.as<float>() + i % seq_len * width + columns.begin, columns.size());
  }
}

void zero(Queue& queue, const MutView& y) {
  if (queue.device() == Device::cuda) return fill(queue, 0, y);
  const RowCut cut = cut_by_bytes(y.n_elements(), 4);
  queue.tiles("embedding_zero", cut.n_tiles(), [=](std::int64_t tile) {
    const Range range = cut.rows(tile);
    std::fill(y.as<float>() + range.begin, y.as<float>() + range.end, 0.0f);
  });
}

}  // namespace

void embedding_forward(Queue& queue, View tokens, View table, View positions, std::int64_t seq_len,
                       MutView y) {
  const Dtype dtype = compute_dtype(table, "table");
  expect_matrix(table, "table", dtype);
  const std::int64_t n = tokens.n_elements();
  const std::int64_t width = table.shape()[1];
  CHECK_CONTRACT(tokens.dtype() == Dtype::i32, "tokens are i32");
  CHECK_CONTRACT(seq_len > 0 && n % seq_len == 0, "tokens are whole sequences");
  expect(y, "y", dtype, {n, width});
  if (!positions.empty()) {
    expect_matrix(positions, "positions", dtype);
    CHECK_CONTRACT(positions.shape()[0] >= seq_len && positions.shape()[1] == width,
                   "positions has a row as wide as the table's for each place of a sequence");
  }
  if (issued(queue, "embedding_forward", &cuda::OpCalls::embedding_forward, tokens, table,
             positions, seq_len, y, TablePart{}))
    return;
  const RowCut cut = cut_by_bytes(n, 12 * width);
  queue.tiles("embedding_forward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t id = checked_row(tokens.as<std::int32_t>(), i, table.shape()[0]);
      const MutElements row = MutElements(y) + i * width;
      std::memcpy(row.data, (Elements(table) + id * width).data,
                  static_cast<std::size_t>(width) * size_of(dtype));
      if (!positions.empty()) fast::add(Elements(positions) + i % seq_len * width, row, width);
    }
  });
}

void embedding_part_forward(Queue& queue, View tokens, View table, std::int64_t first_row,
                            std::int64_t n_rows, MutView y) {
  const Dtype dtype = compute_dtype(table, "table");
  expect_matrix(table, "table", dtype);
  const std::int64_t n = tokens.n_elements();
  const std::int64_t width = table.shape()[1];
  CHECK_CONTRACT(tokens.dtype() == Dtype::i32, "tokens are i32");
  expect(y, "y", dtype, {n, width});
  if (issued(queue, "embedding_part_forward", &cuda::OpCalls::embedding_forward, tokens, table,
             View(), std::int64_t{1}, y, TablePart{first_row, n_rows}))
    return;
  const RowCut cut = cut_by_bytes(n, 12 * width);
  const TablePart part{first_row, n_rows};
  queue.tiles("embedding_part_forward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    const std::size_t row_bytes = static_cast<std::size_t>(width) * size_of(dtype);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const std::int64_t id = row_of_part(tokens.as<std::int32_t>(), i, part, table.shape()[0]);
      const MutElements row = MutElements(y) + i * width;
      if (id < 0) {
        std::memset(row.data, 0, row_bytes);
      } else {
        std::memcpy(row.data, (Elements(table) + id * width).data, row_bytes);
      }
    }
  });
}

void add_positions(Queue& queue, View positions, std::int64_t seq_len, std::int64_t first_row,
                   MutView y) {
  expect_matrix(positions, "positions", y.dtype());
  const std::int64_t width = y.shape()[1];
  CHECK_CONTRACT(positions.shape()[0] >= seq_len && positions.shape()[1] == width,
                 "positions has a row as wide as y's for each place of a sequence");
  if (issued(queue, "add_positions", &cuda::OpCalls::add_positions, positions, seq_len, first_row,
             y))
    return;
  const RowCut cut = cut_by_bytes(y.shape()[0], 12 * width);
  queue.tiles("add_positions", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      fast::add(Elements(positions) + (first_row + i) % seq_len * width, MutElements(y) + i * width,
                width);
    }
  });
}

void embedding_backward(Queue& queue, View tokens, View dy, std::int64_t seq_len, Write write,
                        MutView dtable, MutView dpositions, TablePart part) {
  const std::int64_t n = tokens.n_elements();
  CHECK_CONTRACT(tokens.dtype() == Dtype::i32, "tokens are i32");
  CHECK_CONTRACT(seq_len > 0 && n % seq_len == 0, "tokens are whole sequences");
  expect_matrix(dy, "dy", compute_dtype(dy, "dy"));
  const std::int64_t width = dy.shape()[1];
  CHECK_CONTRACT(dy.shape()[0] == n, "dy has a row for each token");
  if (!dtable.empty()) {
    expect_matrix(dtable, "dtable");
    CHECK_CONTRACT(dtable.shape()[1] == width, "dtable has rows as wide as dy's");
  }
  if (!dpositions.empty()) {
    expect_matrix(dpositions, "dpositions");
    CHECK_CONTRACT(dpositions.shape()[0] >= seq_len && dpositions.shape()[1] == width,
                   "dpositions has a row as wide as the table's for each place of a sequence");
  }
  if (write == Write::set) {
    if (!dtable.empty()) zero(queue, dtable);
    if (!dpositions.empty()) zero(queue, dpositions);
  }
  if (part.n_rows == 0 && !dtable.empty()) part.n_rows = dtable.shape()[0];
  if (issued(queue, "embedding_backward", &cuda::OpCalls::embedding_backward, tokens, dy, seq_len,
             dtable, dpositions, part))
    return;
  // Two tokens may name one row, so tiles are columns: within one, rows come in order.
  const RowCut cut = cut_by_bytes(width, 20 * n);
  queue.tiles("embedding_backward", cut.n_tiles(), [=](std::int64_t tile) {
    scatter_columns(tokens, dy, seq_len, cut.rows(tile), dtable, dpositions, part);
  });
}

}  // namespace llm
