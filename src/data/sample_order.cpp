#include "src/data/sample_order.h"

#include <cmath>

#include "src/base/check.h"
#include "src/base/philox.h"

namespace llm {
namespace {

constexpr int n_rounds = 4;  // Luby and Rackoff: enough for a permutation that looks random

std::uint64_t round_value(std::uint64_t key, std::uint32_t round, std::uint64_t half) {
  const PhiloxBlock block = philox(
      {static_cast<std::uint32_t>(half), static_cast<std::uint32_t>(half >> 32), round, 0}, key);
  return (std::uint64_t{block[1]} << 32) | block[0];
}

}  // namespace

Permutation::Permutation(std::uint64_t key, std::int64_t n)
    : key_(key), n_(static_cast<std::uint64_t>(n)) {
  CHECK_CONTRACT(n >= 1 && n < (std::int64_t{1} << 52), "a permutation has 1 to 2^52 elements");
  rows_ = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));  // any value is right
  columns_ = (n_ + rows_ - 1) / rows_;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  auto value = static_cast<std::uint64_t>(index);
  CHECK_CONTRACT(index >= 0 && value < n_, "an index lies in the permutation");
  do {
    std::uint64_t row = value / columns_;
    std::uint64_t column = value % columns_;
    for (std::uint32_t round = 0; round < n_rounds; round += 2) {
      row = (row + round_value(key_, round, column) % rows_) % rows_;
      column = (column + round_value(key_, round + 1, row) % columns_) % columns_;
    }
    value = row * columns_ + column;
  } while (value >= n_);
  // With few elements the rounds alone prefer some places by a tenth; a turn by a random amount
  // makes every image of an index equally likely.
  return static_cast<std::int64_t>((value + round_value(key_, n_rounds, 0) % n_) % n_);
}

std::int64_t sample_at(std::uint64_t seed, std::int64_t epoch, std::int64_t index, std::int64_t n) {
  constexpr std::uint64_t sample_order = 0x726564726F;  // "order": other draws have other names
  return Permutation(mix_key(mix_key(seed, sample_order), static_cast<std::uint64_t>(epoch)),
                     n)(index);
}

SampleOrder::SampleOrder(const Config& config) : config_(config) {
  CHECK_CONTRACT(config.n_samples >= 1, "an order has samples");
}

std::int64_t SampleOrder::at(std::int64_t position) const {
  CHECK_CONTRACT(position >= 0, "a position counts from 0");
  const std::int64_t epoch = position / config_.n_samples;
  const std::int64_t index = position % config_.n_samples;
  return config_.shuffle ? sample_at(config_.seed, epoch, index, config_.n_samples) : index;
}

}  // namespace llm
