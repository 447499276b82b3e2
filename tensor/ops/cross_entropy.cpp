#include "tensor/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "src/base/error.h"
#include "tensor/cuda/issue.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/cross_entropy_kernels.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace plain {

float log_sum_exp(const float* logits, std::int64_t n) {
  const float max = *std::max_element(logits, logits + n);
  double sum = 0;
  for (std::int64_t v = 0; v < n; ++v) sum += std::exp(logits[v] - max);
  return static_cast<float>(max + std::log(sum));
}

void scaled_softmax(const float* logits, std::int64_t n, float log_sum, float scale, float* y) {
  for (std::int64_t v = 0; v < n; ++v) y[v] = scale * std::exp(logits[v] - log_sum);
}

}  // namespace plain

namespace {

std::int32_t checked_label(const View& labels, std::int64_t row, std::int64_t n_classes) {
  const std::int32_t label = labels.as<std::int32_t>()[row];
  if (label != ignored_label && (label < 0 || label >= n_classes)) {
    throw DataError("the label of row " + std::to_string(row) + " is " + std::to_string(label) +
                    ", but the vocabulary has " + std::to_string(n_classes) + " ids: use 0 to " +
                    std::to_string(n_classes - 1) + ", or " + std::to_string(ignored_label) +
                    " for a token that does not count");
  }
  return label;
}

void check(const View& logits, const View& labels, const View& losses) {
  expect_matrix(logits, "logits");
  CHECK_CONTRACT(logits.shape()[1] > 0, "a row of logits has at least one class");
  CHECK_CONTRACT(labels.dtype() == Dtype::i32 && labels.n_elements() == logits.shape()[0],
                 "labels is i32, one a row of logits");
  expect_elements(losses, "losses", logits.shape()[0]);
}

}  // namespace

void cross_entropy_forward(Queue& queue, View logits, View labels, MutView losses) {
  check(logits, labels, losses);
  if (issued(queue, "cross_entropy_forward", &cuda::OpCalls::cross_entropy, labels, 1.0f, logits,
             MutView(), losses)) {
    return;
  }
  const std::int64_t n_classes = logits.shape()[1];
  const RowCut cut = cut_by_bytes(logits.shape()[0], 16 * n_classes);
  queue.tiles("cross_entropy_forward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int32_t label = checked_label(labels, r, n_classes);
      const float* row = logits.as<float>() + r * n_classes;
      float& loss = losses.as<float>()[r];
      loss = label == ignored_label ? 0 : fast::log_sum_exp(row, n_classes) - row[label];
    }
  });
}

void cross_entropy_forward_backward(Queue& queue, View labels, float scale, MutView logits,
                                    MutView dlogits, MutView losses) {
  check(logits, labels, losses);
  expect(dlogits, "dlogits", compute_dtype(dlogits, "dlogits"), logits.shape());
  if (issued(queue, "cross_entropy_forward_backward", &cuda::OpCalls::cross_entropy, labels, scale,
             logits, dlogits, losses)) {
    return;
  }
  const std::int64_t n_classes = logits.shape()[1];
  const RowCut cut = cut_by_bytes(logits.shape()[0], 24 * n_classes);
  queue.tiles("cross_entropy_forward_backward", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int32_t label = checked_label(labels, r, n_classes);
      const float* row = logits.as<float>() + r * n_classes;
      const MutElements drow = MutElements(dlogits) + r * n_classes;
      float& loss = losses.as<float>()[r];
      if (label == ignored_label) {
        loss = 0;
        std::memset(drow.data, 0, static_cast<std::size_t>(n_classes) * size_of(drow.dtype));
        continue;
      }
      const float log_sum = fast::log_sum_exp(row, n_classes);
      loss = log_sum - row[label];
      float at_label = 0;  // drow may be row
      fast::scaled_softmax(row + label, 1, log_sum, scale, &at_label);
      fast::scaled_softmax(row, n_classes, log_sum, scale, drow);
      at_label -= scale;
      fast::convert(&at_label, drow + label, 1);
    }
  });
}

void cross_entropy_statistics(Queue& queue, View logits, View labels, VocabularyPart part,
                              MutView statistics) {
  expect_matrix(logits, "logits");
  const std::int64_t n_columns = logits.shape()[1];
  CHECK_CONTRACT(part.n_own <= n_columns, "a rank's classes are columns of its logits");
  expect(statistics, "statistics", Dtype::f32, {logits.shape()[0], 2});
  if (issued(queue, "cross_entropy_statistics", &cuda::OpCalls::cross_entropy_statistics, logits,
             labels, part, statistics))
    return;
  const RowCut cut = cut_by_bytes(logits.shape()[0], 16 * n_columns);
  queue.tiles("cross_entropy_statistics", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int64_t label = checked_label(labels, r, part.n_classes) - part.first_class;
      const float* row = logits.as<float>() + r * n_columns;
      float* const out = statistics.as<float>() + 2 * r;
      out[0] = part.n_own == 0 ? -INFINITY : fast::log_sum_exp(row, part.n_own);
      out[1] = label >= 0 && label < part.n_own ? row[label] : 0;
    }
  });
}

namespace {

/// log of the sum of exponentials over all ranks, and the label's logit: in the order of the ranks.
struct WholeRow {
  float log_sum;
  float at_label;
};

WholeRow whole_row(const View& all, std::int64_t r) {
  const std::int64_t n_ranks = all.shape()[0];
  const std::int64_t n = all.shape()[1];
  const auto of = [&](std::int64_t rank, int k) { return all.as<float>()[(rank * n + r) * 2 + k]; };
  float most = of(0, 0);
  for (std::int64_t rank = 1; rank < n_ranks; ++rank) most = std::max(most, of(rank, 0));
  double sum = 0;
  float at_label = 0;
  for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
    sum += std::exp(double{of(rank, 0)} - double{most});
    at_label += of(rank, 1);
  }
  return {static_cast<float>(double{most} + std::log(sum)), at_label};
}

/// scale * (softmax - [label]) in the rank's own columns.
void gradient_row(const WholeRow& whole, std::int64_t label, std::int64_t n_own,
                  std::int64_t n_columns, float scale, const float* row, MutElements drow) {
  float at_label = 0;  // drow may be row
  const bool has_label = label >= 0 && label < n_own;
  if (has_label) fast::scaled_softmax(row + label, 1, whole.log_sum, scale, &at_label);
  if (n_own > 0) fast::scaled_softmax(row, n_own, whole.log_sum, scale, drow);
  at_label -= scale;
  if (has_label) fast::convert(&at_label, drow + label, 1);
  std::memset((drow + n_own).data, 0,
              static_cast<std::size_t>(n_columns - n_own) * size_of(drow.dtype));
}

}  // namespace

void cross_entropy_of_parts(Queue& queue, View all, View labels, VocabularyPart part, float scale,
                            MutView logits, MutView dlogits, MutView losses) {
  check(logits, labels, losses);
  const std::int64_t n = logits.shape()[0];
  const std::int64_t n_columns = logits.shape()[1];
  expect(all, "all", Dtype::f32, {all.shape()[0], n, 2});
  if (!dlogits.empty()) {
    expect(dlogits, "dlogits", compute_dtype(dlogits, "dlogits"), logits.shape());
  }
  if (issued(queue, "cross_entropy_of_parts", &cuda::OpCalls::cross_entropy_of_parts, all, labels,
             part, scale, logits, dlogits, losses))
    return;
  const RowCut cut = cut_by_bytes(n, 24 * n_columns);
  queue.tiles("cross_entropy_of_parts", cut.n_tiles(), [=](std::int64_t tile) {
    const Range rows = cut.rows(tile);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int32_t label = checked_label(labels, r, part.n_classes);
      const WholeRow whole = whole_row(all, r);
      float& loss = losses.as<float>()[r];
      loss = label == ignored_label ? 0 : whole.log_sum - whole.at_label;
      if (dlogits.empty()) continue;
      const MutElements drow = MutElements(dlogits) + r * n_columns;
      if (label == ignored_label) {
        std::memset(drow.data, 0, static_cast<std::size_t>(n_columns) * size_of(drow.dtype));
        continue;
      }
      gradient_row(whole, label - part.first_class, part.n_own, n_columns, scale,
                   logits.as<float>() + r * n_columns, drow);
    }
  });
}

}  // namespace llm
