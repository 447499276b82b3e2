#include "schedules/partition.h"

#include <algorithm>
#include <numeric>

#include "src/base/check.h"

namespace llm {

std::int64_t Partition::samples_per_accumulation_step() const {
  return std::accumulate(microbatch_samples.begin(), microbatch_samples.end(), std::int64_t{0});
}

std::int64_t Partition::largest_microbatch() const {
  return *std::max_element(microbatch_samples.begin(), microbatch_samples.end());
}

Range Partition::samples(int index) const {
  CHECK_CONTRACT(0 <= index && index < n_global_microbatches(),
                 "a microbatch is one of the step's");
  const auto per_flush = static_cast<std::ptrdiff_t>(microbatch_samples.size());
  const auto within = microbatch_samples.begin() + index % per_flush;
  std::int64_t begin = index / per_flush * samples_per_accumulation_step();
  begin = std::accumulate(microbatch_samples.begin(), within, begin);
  return {begin, begin + *within};
}

int loss_scale_exponent(const Partition& partition, std::int64_t seq_len) {
  int k = 0;
  while ((std::int64_t{1} << k) < partition.largest_microbatch() * seq_len) ++k;
  return k;
}

std::vector<Range> even_parts(std::int64_t n, int n_parts) {
  CHECK_CONTRACT(n >= 0 && n_parts >= 1, "something is cut into parts");
  std::vector<Range> parts;
  std::int64_t begin = 0;
  for (int i = 0; i < n_parts; ++i) {
    const std::int64_t size = n / n_parts + (i < n % n_parts ? 1 : 0);
    parts.push_back({begin, begin + size});
    begin += size;
  }
  return parts;
}

}  // namespace llm
