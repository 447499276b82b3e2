#include "src/data/sample_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {

SampleOut row_of(SampleOut out, std::int64_t row, std::int64_t seq_len) {
  return {.tokens = out.tokens == nullptr ? nullptr : out.tokens + row * seq_len,
          .labels = out.labels == nullptr ? nullptr : out.labels + row * seq_len};
}

}  // namespace

void fetch_batch(SampleSource& source, Range positions, SampleOut out) {
  for (std::int64_t i = 0; i < positions.size(); ++i) {
    source.fetch(positions.begin + i, row_of(out, i, source.seq_len()));
  }
}

void fetch_batch_once(SampleSource& source, Range positions, std::int32_t ignored_label,
                      SampleOut out) {
  CHECK_CONTRACT(source.n_samples() >= 0, "one pass is over a known number of samples");
  const std::int64_t end = std::clamp(source.n_samples(), positions.begin, positions.end);
  fetch_batch(source, {positions.begin, end}, out);
  const SampleOut rest = row_of(out, end - positions.begin, source.seq_len());
  const std::int64_t n_rest = (positions.end - end) * source.seq_len();
  if (rest.tokens != nullptr) std::fill_n(rest.tokens, n_rest, 0);
  if (rest.labels != nullptr) std::fill_n(rest.labels, n_rest, ignored_label);
}

std::int64_t count_samples(std::int64_t n_tokens, std::int64_t seq_len) {
  CHECK_CONTRACT(seq_len >= 1, "a sample has tokens");
  if (n_tokens < seq_len + 1) {
    throw DataError(fmt::format(
        "the data has {} tokens, but one sample of data.max_seq_len {} needs {} (its labels are "
        "shifted by one); name more data or lower data.max_seq_len",
        n_tokens, seq_len, seq_len + 1));
  }
  return (n_tokens - 1) / seq_len;
}

SampleSplit split_samples(std::int64_t n_samples, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    throw ConfigError(fmt::format(
        "the validation fraction {} is not in [0, 1); 0 means no validation", fraction));
  }
  const auto n_held_out =
      static_cast<std::int64_t>(std::floor(static_cast<double>(n_samples) * fraction));
  if (n_held_out == 0 || n_held_out >= n_samples) {
    return {.train = {0, n_samples},
            .validation = {n_samples, n_samples},
            .note = fraction == 0
                        ? "no validation: the validation fraction is 0"
                        : fmt::format("no validation: a fraction {} of {} samples leaves one side "
                                      "empty; all samples train",
                                      fraction, n_samples)};
  }
  const std::int64_t n_train = n_samples - n_held_out;
  return {.train = {0, n_train}, .validation = {n_train, n_samples}, .note = ""};
}

}  // namespace llm
