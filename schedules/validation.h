#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedules/pipeline.h"
#include "src/base/range.h"

namespace llm {

/// When the validation loss is computed, and who computes which part of it.
struct ValidationPlan {
  std::int64_t interval_steps = 0;      ///< after every so many steps, and after the last; 0: never
  std::int64_t n_steps = 0;             ///< of the run
  std::int64_t n_samples = 0;           ///< of the validation set, each seen once a round
  std::int64_t microbatch_samples = 1;  ///< the last one may be smaller

  bool due_after(std::int64_t step) const {
    return interval_steps > 0 && n_samples > 0 &&
           ((step + 1) % interval_steps == 0 || step + 1 == n_steps);
  }
  std::int64_t n_rounds(std::int64_t first_step) const {
    std::int64_t n = 0;
    for (std::int64_t step = first_step; step < n_steps; ++step) n += due_after(step) ? 1 : 0;
    return n;
  }
  std::int64_t n_microbatches() const {
    return (n_samples + microbatch_samples - 1) / microbatch_samples;
  }
  Range samples(std::int64_t i) const {
    return {i * microbatch_samples, std::min(n_samples, (i + 1) * microbatch_samples)};
  }
  /// The microbatches of data-parallel rank `rank` of `dp`: contiguous, of all n_microbatches().
  Range microbatches(int rank, int dp) const {
    return {n_microbatches() * rank / dp, n_microbatches() * (rank + 1) / dp};
  }
};

/// What a rank computes that has no validation microbatch of its own while others need its experts.
inline constexpr std::int64_t spare_validation = 0;

/// A validation microbatch on one of a rank's chunks.
struct ValidationPart {
  std::int64_t microbatch;
  int chunk;
  bool operator==(const ValidationPart&) const = default;
};

/// A pipeline rank's order of n microbatches. Microbatch i reaches stage s in time i + s; a rank
/// that does its parts in that order waits for nobody who waits for it. One rank alone has no use
/// for the wave, and for what it would hold.
std::vector<ValidationPart> validation_order(const Pipeline& pipeline, int rank, std::int64_t n);

}  // namespace llm
