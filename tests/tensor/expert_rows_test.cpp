#include "tensor/ops/expert_rows.h"

#include <algorithm>

#include "src/base/error.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("rows that came by rank lie by expert, within one by rank, and go back to their places") {
  // Rank 0 sends 2 and 1 rows for the two experts, rank 1 none and 2, rank 2 none at all.
  const Tensor bounds({3, 3}, Dtype::i32), begins({3}, Dtype::i32), order({7}, Dtype::i32);
  const std::vector<std::int32_t> of_ranks{4, 6, 7, 9, 9, 11, 3, 3, 3};
  std::copy(of_ranks.begin(), of_ranks.end(), bounds.view().as<std::int32_t>());
  const Tensor by_rank = tensor_of({7, 2}, {0, 0, 1, 10, 2, 20, 3, 30, 4, 40, 77, 77, 77, 77});
  const Tensor by_expert({7, 2}), back({7, 2});
  std::fill_n(by_expert.data(), 14, 77.0f);
  std::fill_n(back.data(), 14, 77.0f);
  Queue queue;
  order_by_expert(queue, bounds, begins, order);
  rows_by_expert(queue, begins, order, by_rank, by_expert);
  rows_by_rank(queue, begins, order, by_expert, back);
  queue.finish();
  const std::vector<std::int32_t> expected{0, 2, 5};
  CHECK(std::equal(expected.begin(), expected.end(), begins.view().as<std::int32_t>()));
  // Expert 1: row 2 of rank 0, then rank 1's, which are rows 3 and 4. What is not there stays.
  check_close(by_expert, Doubles{0, 0, 1, 10, 2, 20, 3, 30, 4, 40, 77, 77, 77, 77}, 0);
  CHECK(same_bits(back, by_rank));
}

TEST_CASE("rows of two ranks for two experts alternate") {
  const Tensor bounds({2, 3}, Dtype::i32), begins({3}, Dtype::i32), order({6}, Dtype::i32);
  const std::vector<std::int32_t> of_ranks{0, 1, 3, 0, 2, 3};
  std::copy(of_ranks.begin(), of_ranks.end(), bounds.view().as<std::int32_t>());
  Queue queue;
  order_by_expert(queue, bounds, begins, order);
  queue.finish();
  const std::vector<std::int32_t> expected{0, 3, 4, 1, 2, 5};
  CHECK(std::equal(expected.begin(), expected.end(), order.view().as<std::int32_t>()));
}

TEST_CASE("more rows than there is room for are an error, not a write") {
  const Tensor bounds({2, 2}, Dtype::i32), begins({2}, Dtype::i32), order({3}, Dtype::i32);
  const std::vector<std::int32_t> of_ranks{0, 2, 0, 2};
  std::copy(of_ranks.begin(), of_ranks.end(), bounds.view().as<std::int32_t>());
  Queue queue;
  order_by_expert(queue, bounds, begins, order);
  CHECK_THROWS_AS(queue.finish(), ContractBroken);
}
