#pragma once
#include <cstdint>
#include <vector>

#include "src/base/range.h"

namespace llm {

/// How an optimizer step's samples are cut into microbatches. Microbatches have a global index
/// dp_rank * n_microbatches() + accumulation step * microbatch_samples.size() + m, and take the
/// step's samples contiguously in that order. The partition is part of what is computed; the layout
/// is not.
struct Partition {
  std::vector<std::int64_t> microbatch_samples;  ///< of one accumulation step of one rank
  int n_accumulation_steps = 1;
  int dp = 1;

  /// A: microbatches of one rank and step.
  int n_microbatches() const {
    return static_cast<int>(microbatch_samples.size()) * n_accumulation_steps;
  }
  int n_global_microbatches() const { return n_microbatches() * dp; }
  std::int64_t samples_per_accumulation_step() const;
  std::int64_t global_batch() const {
    return samples_per_accumulation_step() * n_accumulation_steps * dp;
  }
  std::int64_t largest_microbatch() const;
  /// Samples of global microbatch `index`, counted from the step's first sample.
  Range samples(int index) const;
};

/// The least k with 2^k >= the largest microbatch's tokens: backward starts from 1 / 2^k per token.
int loss_scale_exponent(const Partition& partition, std::int64_t seq_len);

/// [0, n) in `n_parts` contiguous parts that differ by one at most, the larger ones first.
std::vector<Range> even_parts(std::int64_t n, int n_parts);

}  // namespace llm
