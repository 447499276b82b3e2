#include "src/data/sft_samples.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/philox.h"

namespace llm {

SftSamples::SftSamples(std::shared_ptr<SftReader> reader, const Config& config)
    : reader_(std::move(reader)), config_(config) {
  CHECK_CONTRACT(
      config.examples.begin >= 0 && config.examples.size() > 0 &&
          config.examples.end <= static_cast<std::int64_t>(reader_->index().examples.size()),
      "examples lie in the data");
  if (config.packing) pack();
  order_ = std::make_unique<SampleOrder>(SampleOrder::Config{
      .n_samples = n_samples(), .seed = config.seed, .shuffle = config.shuffle});
}

std::int64_t SftSamples::n_samples() const {
  return config_.packing ? static_cast<std::int64_t>(row_begin_.size()) - 1
                         : config_.examples.size();
}

void SftSamples::pack() {
  const std::int64_t n = config_.examples.size();
  const Permutation shuffled(mix_key(config_.seed, "sft_packing"), n);
  std::int64_t n_used = seq_len();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t example = config_.examples.begin + (config_.shuffle ? shuffled(i) : i);
    const std::int64_t n_tokens =
        reader_->index().examples[static_cast<std::size_t>(example)].n_tokens;
    // The last token of a row is a label alone.
    if (n_used + n_tokens - 1 > seq_len()) {
      row_begin_.push_back(i);
      n_used = 0;
    }
    packed_.push_back(example);
    n_used += n_tokens;
  }
  row_begin_.push_back(n);
}

void SftSamples::fetch(std::int64_t position, SampleOut out) {
  const std::int64_t row = order_->at(position);
  Range own{config_.examples.begin + row, config_.examples.begin + row + 1};
  if (config_.packing) {
    own = {row_begin_[static_cast<std::size_t>(row)],
           row_begin_[static_cast<std::size_t>(row) + 1]};
  }
  if (out.tokens != nullptr) std::fill_n(out.tokens, seq_len(), 0);
  if (out.labels != nullptr) std::fill_n(out.labels, seq_len(), config_.ignored_label);
  std::int64_t begin = 0;
  for (std::int64_t i = own.begin; i < own.end; ++i) {
    const std::int64_t number = config_.packing ? packed_[static_cast<std::size_t>(i)] : i;
    const SftTokens example = reader_->read(number);
    const auto n = static_cast<std::int64_t>(example.tokens.size());
    for (std::int64_t t = 0; t < std::min(n, seq_len() - begin); ++t) {
      const auto at = static_cast<std::size_t>(t);
      if (out.tokens != nullptr) out.tokens[begin + t] = example.tokens[at];
      if (out.labels != nullptr && t + 1 < n && example.is_answer[at + 1]) {
        out.labels[begin + t] = example.tokens[at + 1];
      }
    }
    begin += n;
  }
}

SourceState SftSamples::identity() const {
  return {.kind = "sft",
          .source = {{data_key_field, static_cast<std::int64_t>(reader_->data_key())},
                     {"data.max_seq_len", seq_len()},
                     {"data.packing", config_.packing},
                     {"the first example", config_.examples.begin},
                     {"the number of examples", config_.examples.size()},
                     {"training.seed", static_cast<std::int64_t>(config_.seed)},
                     {"data.shuffle", config_.shuffle}},
          .place = {}};
}

std::string SftSamples::state() const {
  return to_json(identity());
}

void SftSamples::restore(const std::string& state) {
  read_state(state, identity());
}

}  // namespace llm
