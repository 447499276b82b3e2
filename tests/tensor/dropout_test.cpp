#include "tensor/ops/dropout.h"

#include "src/base/error.h"
#include "src/base/range.h"
#include "tensor/ops/dropout_kernels.h"
#include "tensor/ops/elementwise.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("an element is dropped or scaled by 1 / (1 - p), at the right rate") {
  const std::int64_t n = 200'000;
  const Tensor factors({n});
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    fast::dropout_factors(Dropout{.p = p, .seed = 3}.key(0), p, 0, n, factors.data());
    std::int64_t n_kept = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      REQUIRE((factors[i] == 0 || factors[i] == 1 / (1 - p)));
      n_kept += factors[i] != 0;
    }
    const double keep = 1 - double{p};
    const double deviation = std::sqrt(keep * (1 - keep) / static_cast<double>(n));
    CHECK(std::abs(static_cast<double>(n_kept) / static_cast<double>(n) - keep) < 4 * deviation);
  }
}

TEST_CASE("the fast dropout has the bits of the definition at every start and size") {
  const std::uint64_t key = Dropout{.seed = 5, .step = 7}.key(2);
  const std::int64_t beyond_32_bits = (std::int64_t{1} << 34) - 24;  // the block number carries
  for (const std::int64_t first : {0L, 1L, 2L, 3L, 61L, 64L, 1000L, beyond_32_bits}) {
    for (const std::int64_t n : odd_sizes) {
      const Tensor x = random_tensor({n}, 1), residual = random_tensor({n}, 2);
      const Tensor fast({n}), plain({n});
      fast::dropout_factors(key, 0.3f, first, n, fast.data());
      plain::dropout_factors(key, 0.3f, first, n, plain.data());
      CHECK(same_bits(fast, plain));
      fast::dropout(key, 0.3f, first, n, x.data(), residual.data(), fast.data());
      plain::dropout(key, 0.3f, first, n, x.data(), residual.data(), plain.data());
      CHECK(same_bits(fast, plain));
    }
  }
}

TEST_CASE("a mask does not depend on how the batch is cut") {
  const std::int64_t n_samples = 6, rows = 5, width = 33;
  const Tensor x = random_tensor({n_samples * rows, width}, 1);
  const Tensor whole({n_samples * rows, width}), cut({n_samples * rows, width});
  Dropout dropout{.p = 0.4f, .seed = 1, .step = 2, .first_sample = 10, .layer = 3, .site = 1};
  Queue queue;
  dropout_forward(queue, dropout, rows, x, View(), whole);
  for (std::int64_t sample = 0; sample < n_samples; sample += 2) {
    const Shape shape{2 * rows, width};
    Dropout later = dropout;
    later.first_sample += sample;
    dropout_forward(queue, later, rows, part(View(x), sample * rows * width, shape), View(),
                    part(cut.view(), sample * rows * width, shape));
  }
  queue.finish();
  CHECK(same_bits(whole, cut));
}

TEST_CASE("every part of the key gives another mask") {
  const Dropout base{.p = 0.5f, .seed = 1, .step = 2, .first_sample = 3, .layer = 4, .site = 5};
  std::vector<std::uint64_t> keys = {base.key(0), base.key(1)};
  for (int field = 0; field < 4; ++field) {
    Dropout other = base;
    if (field == 0) other.seed += 1;
    if (field == 1) other.step += 1;
    if (field == 2) other.layer += 1;
    if (field == 3) other.site += 1;
    keys.push_back(other.key(0));
  }
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
  Dropout next = base;
  next.first_sample += 1;
  CHECK(next.key(0) == base.key(1));
}

TEST_CASE("forward adds the residual and backward uses the forward's mask") {
  const Dropout dropout{.p = 0.25f, .seed = 9};
  Queue queue;
  const Tensor x = random_tensor({8, 20}, 1), residual = random_tensor({8, 20}, 2);
  const Tensor dy = random_tensor({8, 20}, 3), out({8, 20}), dx({8, 20}), ones({8, 20}),
               mask({8, 20});
  for (std::int64_t i = 0; i < ones.size(); ++i) ones[i] = 1;
  dropout_forward(queue, dropout, 4, x, residual, out);
  dropout_forward(queue, dropout, 4, ones, View(), mask);
  dropout_backward(queue, dropout, 4, dy, dx);
  queue.finish();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    REQUIRE(out[i] == residual[i] + mask[i] * x[i]);
    REQUIRE(dx[i] == mask[i] * dy[i]);
  }
}

TEST_CASE("p = 0 only adds, in place too") {
  Queue queue;
  const Tensor x = random_tensor({3, 7}, 1), sum = random_tensor({3, 7}, 2);
  const Tensor before = random_tensor({3, 7}, 2);
  dropout_forward(queue, {}, 1, x, sum, sum);
  queue.finish();
  for (std::int64_t i = 0; i < x.size(); ++i) REQUIRE(sum[i] == before[i] + x[i]);
}

TEST_CASE("a part of the rows is dropped as in the whole, wherever it begins") {
  Queue queue;
  Tensor x({12, 5});
  fill(queue, 1, x);
  Tensor whole({12, 5});
  Dropout dropout{.p = 0.4f, .seed = 3, .first_sample = 7};
  dropout_forward(queue, dropout, 4, x, View(), whole);
  for (const Range rows : {Range{0, 3}, Range{3, 8}, Range{8, 12}, Range{5, 6}}) {
    Tensor some({rows.size(), 5});
    dropout.first_row = rows.begin;
    dropout_forward(queue, dropout, 4, part(View(x), 0, {rows.size(), 5}), View(), some);
    queue.finish();
    for (std::int64_t i = 0; i < some.size(); ++i) CHECK(some[i] == whole[rows.begin * 5 + i]);
  }
}

TEST_CASE("dropout refuses p = 1 and samples without rows") {
  Queue queue;
  const Tensor x({6, 2});
  CHECK_THROWS_AS(dropout_forward(queue, {.p = 1}, 3, x, View(), x), ContractBroken);
  CHECK_THROWS_AS(dropout_forward(queue, {.p = 0.1f}, 0, x, View(), x), ContractBroken);
}
