#include "tensor/ops/elementwise.h"

#include "src/base/error.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("copy, fill, add and add_rows do what they say at every odd size") {
  for (const std::int64_t n : odd_sizes) {
    Queue queue;
    const Tensor x = random_tensor({n}, 1), before = random_tensor({n}, 2),
                 y = random_tensor({n}, 2);
    const Tensor copied({n}), filled({n});
    add(queue, x, y);
    copy(queue, x, copied);
    fill(queue, 2.5f, filled);
    queue.finish();
    CHECK(same_bits(copied, x));
    for (std::int64_t i = 0; i < n; ++i) {
      REQUIRE(y[i] == before[i] + x[i]);
      REQUIRE(filled[i] == 2.5f);
    }
    const Tensor rows = random_tensor({3, n}, 3), bias = random_tensor({n}, 4);
    const Tensor rows_before = random_tensor({3, n}, 3);
    add_rows(queue, bias, rows);
    queue.finish();
    for (std::int64_t i = 0; i < 3 * n; ++i) REQUIRE(rows[i] == rows_before[i] + bias[i % n]);
  }
}

TEST_CASE("several tiles of an add reach every element") {
  Queue queue;
  const std::int64_t n = 6'000'001;
  const Tensor x({n}), y({n});
  fill(queue, 1, x);
  fill(queue, 2, y);
  add(queue, x, y);
  queue.finish();
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += y[i];
  CHECK(sum == 3.0 * static_cast<double>(n));
}

TEST_CASE("the fast sum of rows has the bits of the plain one, rows in order") {
  for (const std::int64_t width : odd_sizes) {
    for (const bool accumulate : {false, true}) {
      const std::int64_t n_rows = 37, stride = width + 3;
      const Tensor y = random_tensor({n_rows * stride}, 1);
      const Tensor fast = random_tensor({width}, 2), plain = random_tensor({width}, 2);
      fast::sum_rows(y.data(), n_rows, stride, width, accumulate, fast.data());
      plain::sum_rows(y.data(), n_rows, stride, width, accumulate, plain.data());
      CHECK(same_bits(fast, plain));
    }
  }
}

TEST_CASE("the fast transpose moves every element where the plain one does") {
  for (const std::int64_t n_rows : odd_sizes) {
    for (const std::int64_t n_columns : {1, 3, 16, 17, 64, 100}) {
      const std::int64_t stride = n_columns + 5, out_stride = n_rows + 2;
      const Tensor x = random_tensor({n_rows * stride}, 1);
      const Tensor fast({n_columns * out_stride}), plain({n_columns * out_stride});
      fast::transpose(x.data(), stride, n_rows, n_columns, fast.data(), out_stride);
      plain::transpose(x.data(), stride, n_rows, n_columns, plain.data(), out_stride);
      CHECK(same_bits(fast, plain));
    }
  }
}

TEST_CASE("elementwise ops refuse sizes and dtypes that differ") {
  Queue queue;
  const Tensor x({4}), y({5}), i({4}, Dtype::i32);
  CHECK_THROWS_AS(add(queue, x, y), ContractBroken);
  CHECK_THROWS_AS(copy(queue, x, y), ContractBroken);
  CHECK_THROWS_AS(copy(queue, x, i), ContractBroken);
  CHECK_THROWS_AS(fill(queue, 0, i), ContractBroken);
  CHECK_THROWS_AS(add_rows(queue, x, y), ContractBroken);
}
