#include "src/data/sample_order.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "src/base/error.h"

namespace llm::test {

namespace {

std::vector<std::int64_t> epoch_of(std::uint64_t seed, std::int64_t epoch, std::int64_t n) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < n; ++i) order.push_back(sample_at(seed, epoch, i, n));
  return order;
}

bool is_permutation_of_range(const std::vector<std::int64_t>& order) {
  std::vector<bool> seen(order.size());
  for (const std::int64_t sample : order) {
    if (sample < 0 || sample >= static_cast<std::int64_t>(order.size())) return false;
    if (seen[static_cast<std::size_t>(sample)]) return false;
    seen[static_cast<std::size_t>(sample)] = true;
  }
  return true;
}

}  // namespace

TEST_CASE("the order of an epoch is a permutation for every number of samples") {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 1; n <= 130; ++n) sizes.push_back(n);
  for (std::int64_t n = 256; n <= 65536; n *= 2) sizes.insert(sizes.end(), {n - 1, n, n + 1});
  sizes.insert(sizes.end(), {1000, 9999, 10000, 10001, 99991});
  for (const std::int64_t n : sizes) {
    INFO("n " << n);
    CHECK(is_permutation_of_range(epoch_of(n % 7, n % 3, n)));
  }
}

TEST_CASE("huge numbers of samples stay in range without meeting twice") {
  const std::int64_t n = (std::int64_t{1} << 40) + 12345;
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 20'000; ++i) {
    const std::int64_t sample = sample_at(1, 0, n - 1 - i * 1'000'003 % n, n);
    CHECK((sample >= 0 && sample < n));
    CHECK(seen.insert(sample).second);
  }
}

TEST_CASE("the order differs by seed and by epoch and repeats for the same") {
  const auto order = epoch_of(5, 2, 1000);
  CHECK(order == epoch_of(5, 2, 1000));
  int n_same_seed = 0;
  int n_same_epoch = 0;
  const auto other_seed = epoch_of(6, 2, 1000);
  const auto other_epoch = epoch_of(5, 3, 1000);
  for (std::size_t i = 0; i < order.size(); ++i) {
    n_same_seed += order[i] == other_seed[i];
    n_same_epoch += order[i] == other_epoch[i];
  }
  CHECK(n_same_seed < 10);  // 1 is expected of independent orders, 10 has chance 1e-7
  CHECK(n_same_epoch < 10);
}

TEST_CASE("every sample is equally likely at every place") {
  for (const std::int64_t n : {2, 3, 5, 6, 7, 10, 17}) {
    const int n_seeds = 6000;
    std::vector<std::vector<int>> counts(static_cast<std::size_t>(n),
                                         std::vector<int>(static_cast<std::size_t>(n)));
    for (std::uint64_t seed = 0; seed < n_seeds; ++seed) {
      for (std::int64_t i = 0; i < n; ++i) {
        ++counts[static_cast<std::size_t>(i)][static_cast<std::size_t>(sample_at(seed, 0, i, n))];
      }
    }
    const double expected = n_seeds / static_cast<double>(n);
    const double sigma = std::sqrt(expected * (1 - 1 / static_cast<double>(n)));
    for (const auto& row : counts) {
      for (const int count : row) CHECK(std::abs(count - expected) < 5 * sigma);
    }
  }
}

TEST_CASE("neighbours of the data do not stay neighbours") {
  const auto order = epoch_of(0, 0, 10'000);
  int n_neighbours = 0;
  for (std::size_t i = 1; i < order.size(); ++i) {
    n_neighbours += std::abs(order[i] - order[i - 1]) <= 1;
  }
  CHECK(n_neighbours < 12);  // 2 are expected
}

TEST_CASE("positions run through epochs, shuffled or in order") {
  const SampleOrder shuffled({.n_samples = 10, .seed = 3, .shuffle = true});
  const SampleOrder in_order({.n_samples = 10, .seed = 3, .shuffle = false});
  for (std::int64_t position = 0; position < 50; ++position) {
    CHECK(shuffled.at(position) == sample_at(3, position / 10, position % 10, 10));
    CHECK(in_order.at(position) == position % 10);
  }
  CHECK_THROWS_AS(SampleOrder({.n_samples = 0}), ContractBroken);
  CHECK_THROWS_AS(in_order.at(-1), ContractBroken);
}

TEST_CASE("the order is the one that checkpoints of this format were saved with") {
  CHECK(epoch_of(0, 0, 10) == std::vector<std::int64_t>{9, 5, 2, 1, 4, 8, 3, 7, 0, 6});
  CHECK(sample_at(1234, 7, 99, 1'000'000'007) == 802'248'071);
}

}  // namespace llm::test
