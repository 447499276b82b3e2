#pragma once
#include <cstdint>
#include <string>

#include "src/base/range.h"

namespace llm {

/// Where a sample goes. A sample is T + 1 consecutive tokens: `tokens` gets the first T, `labels`
/// the last T (labels[i] follows tokens[i]). A null pointer is a half that this rank does not need.
struct SampleOut {
  std::int32_t* tokens = nullptr;
  std::int32_t* labels = nullptr;
};

/// Samples by their global position 0, 1, 2, ... over all epochs and ranks. The sample at a
/// position is a function of data, seed and position alone, so a rank asks for the positions that
/// are its own, and the layout of ranks cannot change what is trained on.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// T
  virtual std::int64_t seq_len() const = 0;
  /// Samples of one epoch; -1 while a stream has not seen its end.
  virtual std::int64_t n_samples() const = 0;
  /// Fills T tokens and T labels. A stream takes positions that do not decrease.
  /// Throws DataError or FileError when the data is not what it was.
  virtual void fetch(std::int64_t position, SampleOut out) = 0;
  /// What a checkpoint keeps (one line of JSON): with it, a new source of the same data gives the
  /// same samples from the last fetched position on. The ranks' states may differ and are equally
  /// good.
  virtual std::string state() const = 0;
  /// Continues from `state` of an earlier run. DataError names what differs: data, seed, T, ...
  virtual void restore(const std::string& state) = 0;
};

/// Fills (positions.size(), T) tokens and labels, row by row.
void fetch_batch(SampleSource& source, Range positions, SampleOut out);

/// As fetch_batch for one pass over a source whose n_samples() is known: rows at or after
/// n_samples() get tokens 0 and labels `ignored_label`, so that any number of ranks sees each
/// sample once.
void fetch_batch_once(SampleSource& source, Range positions, std::int32_t ignored_label,
                      SampleOut out);

/// Samples of a stream of `n_tokens`: stride T, so that every token but the first is a label
/// exactly once; only the last incomplete sample is dropped. DataError (both numbers) below T + 1
/// tokens.
std::int64_t count_samples(std::int64_t n_tokens, std::int64_t seq_len);

/// Samples [0, n) cut into training and validation.
struct SampleSplit {
  Range train;
  Range validation;  ///< may be empty
  std::string note;  ///< why there is no validation; empty when there is
};

/// Holds out the last floor(n_samples * fraction) samples: no token is a label on both sides. When
/// a side would be empty, all samples train and `note` says so. ConfigError unless fraction is in
/// [0, 1).
SampleSplit split_samples(std::int64_t n_samples, double fraction);

}  // namespace llm
