#include "src/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/philox.h"

namespace llm {
namespace {

/// Keeps the first candidates that have `top_p` of the sum.
void cut_to(std::vector<Candidate>& all, double top_p, double sum) {
  double covered = 0;
  std::size_t n = 0;
  while (n < all.size() && (n == 0 || covered < top_p * sum)) covered += all[n++].probability;
  all.resize(n);
}

}  // namespace

std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling) {
  CHECK_CONTRACT(!logits.empty() && sampling.temperature >= 0 && sampling.top_k >= 0 &&
                     sampling.top_p > 0 && sampling.top_p <= 1,
                 "a token is chosen by sensible numbers");
  float largest = -INFINITY;
  for (const float logit : logits) {
    if (std::isnan(logit)) largest = INFINITY;
    largest = std::max(largest, logit);
  }
  if (!std::isfinite(largest)) {
    throw DataError(
        "the model's logits are not finite: its weights are damaged, or its training diverged");
  }
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit_of = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  const auto is_before = [&](std::int32_t a, std::int32_t b) {
    return logit_of(a) != logit_of(b) ? logit_of(a) > logit_of(b) : a < b;
  };
  if (sampling.temperature == 0) {
    return {{.id = *std::min_element(ids.begin(), ids.end(), is_before), .probability = 1}};
  }
  const bool has_top_k = sampling.top_k > 0 && sampling.top_k < std::ssize(ids);
  if (has_top_k) {
    std::nth_element(ids.begin(), ids.begin() + sampling.top_k, ids.end(), is_before);
    ids.resize(static_cast<std::size_t>(sampling.top_k));
  }
  std::sort(ids.begin(), ids.end(), is_before);
  std::vector<Candidate> all;
  double sum = 0;
  for (const std::int32_t id : ids) {
    const double weight = std::exp((double{logit_of(id)} - double{largest}) / sampling.temperature);
    all.push_back({.id = id, .probability = weight});
    sum += weight;
  }
  if (sampling.top_p < 1) cut_to(all, sampling.top_p, sum);
  double kept = 0;
  for (const Candidate& one : all) kept += one.probability;
  for (Candidate& one : all) one.probability /= kept;
  return all;
}

std::int32_t draw(std::span<const Candidate> candidates, double u) {
  double sum = 0;
  for (const Candidate& one : candidates) {
    sum += one.probability;
    if (u < sum) return one.id;
  }
  // The sum of all is 1 but for rounding; what has no probability is never drawn.
  std::size_t last = candidates.size() - 1;
  while (last > 0 && candidates[last].probability == 0) --last;
  return candidates[last].id;
}

double uniform_draw(std::uint64_t seed, std::int64_t index) {
  const PhiloxBlock bits = philox_at(mix_key(seed, "text"), static_cast<std::uint64_t>(index));
  const std::uint64_t wide = (std::uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace llm
