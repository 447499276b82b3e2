#pragma once
#include <cstdint>

namespace llm {

/// A permutation of [0, n), computed point by point: no index file, no memory. Four Feistel rounds
/// over Z_rows x Z_columns, rows * columns in [n, n + rows), with Philox as round function; an
/// image at or above n is mapped again until it falls below (cycle walking), which keeps it a
/// permutation; a rotation by a random amount comes last.
class Permutation {
 public:
  /// n >= 1
  Permutation(std::uint64_t key, std::int64_t n);
  /// Where `index` in [0, n) goes.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t key_;
  std::uint64_t n_;
  std::uint64_t rows_;
  std::uint64_t columns_;
};

/// Which sample stands at place `index` of epoch `epoch`: a pure function that knows no ranks.
std::int64_t sample_at(std::uint64_t seed, std::int64_t epoch, std::int64_t index, std::int64_t n);

/// The endless order of samples: position p is place p % n of epoch p / n. Step s of a global batch
/// of G takes positions [s * G, (s + 1) * G); a batch at the end of an epoch runs on into the next,
/// so that no sample is dropped and an epoch holds each exactly once.
class SampleOrder {
 public:
  struct Config {
    std::int64_t n_samples = 0;  ///< >= 1
    std::uint64_t seed = 0;
    bool shuffle = true;  ///< false: every epoch in order
  };
  explicit SampleOrder(const Config& config);
  /// The sample in [0, n_samples) at `position` >= 0.
  std::int64_t at(std::int64_t position) const;
  std::int64_t n_samples() const { return config_.n_samples; }

 private:
  Config config_;
};

}  // namespace llm
