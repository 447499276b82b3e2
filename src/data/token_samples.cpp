#include "src/data/token_samples.h"

#include <fmt/core.h>

#include <algorithm>

#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {
// Far below the usual limit of 1,024 descriptors, which MPI's sockets share.
constexpr std::size_t max_open_token_files = 128;
}  // namespace

TokenStore::TokenStore(const TokenSet& set, std::int64_t vocab_size)
    : set_(set), vocab_size_(vocab_size), first_token_{0}, open_files_(set.paths.size()) {
  for (std::size_t i = 0; i < set_.paths.size(); ++i) {
    first_token_.push_back(first_token_.back() + set_.n_file_tokens[i]);
    file(i);
  }
  CHECK_CONTRACT(first_token_.back() == set_.n_tokens, "the files of a token set add up");
}

TokenFile& TokenStore::file(std::size_t index) {
  std::unique_ptr<TokenFile>& slot = open_files_[index];
  if (slot) return *slot;
  if (n_open_ == max_open_token_files) {
    for (auto& other : open_files_) other.reset();
    n_open_ = 0;
  }
  slot = std::make_unique<TokenFile>(set_.paths[index]);
  ++n_open_;
  if (slot->n_tokens() != set_.n_file_tokens[index]) {
    throw DataError(fmt::format("{}: has {} tokens, but had {} when it was checked at the start",
                                slot->path(), slot->n_tokens(), set_.n_file_tokens[index]));
  }
  return *slot;
}

void TokenStore::read(std::int64_t begin, std::int64_t n, std::int32_t* out) {
  CHECK_CONTRACT(begin >= 0 && n >= 0 && begin + n <= n_tokens(), "tokens lie in the stream");
  const auto after = std::upper_bound(first_token_.begin(), first_token_.end(), begin);
  for (auto index = static_cast<std::size_t>(after - first_token_.begin()) - 1; n > 0; ++index) {
    const std::int64_t in_file = begin - first_token_[index];
    const std::int64_t n_here = std::min(n, first_token_[index + 1] - begin);
    const TokenFile& tokens = file(index);
    tokens.read(in_file, n_here, out);
    check_ids(tokens.path(), in_file, vocab_size_, out, n_here);
    begin += n_here;
    out += n_here;
    n -= n_here;
  }
}

TokenSamples::TokenSamples(std::shared_ptr<TokenStore> store, const Config& config)
    : store_(std::move(store)),
      config_(config),
      order_({.n_samples = config.samples.size(), .seed = config.seed, .shuffle = config.shuffle}),
      window_(static_cast<std::size_t>(config.seq_len + 1)) {
  CHECK_CONTRACT(config.samples.begin >= 0 &&
                     config.samples.end <= count_samples(store_->n_tokens(), config.seq_len),
                 "samples lie in the data");
}

void TokenSamples::fetch(std::int64_t position, SampleOut out) {
  const std::int64_t sample = config_.samples.begin + order_.at(position);
  store_->read(sample * config_.seq_len, config_.seq_len + 1, window_.data());
  if (out.tokens != nullptr) std::copy(window_.begin(), window_.end() - 1, out.tokens);
  if (out.labels != nullptr) std::copy(window_.begin() + 1, window_.end(), out.labels);
}

SourceState TokenSamples::identity() const {
  return {.kind = "tokens",
          .source = {{data_key_field, static_cast<std::int64_t>(store_->data_key())},
                     {"data.max_seq_len", config_.seq_len},
                     {"the first sample", config_.samples.begin},
                     {"the number of samples", config_.samples.size()},
                     {"training.seed", static_cast<std::int64_t>(config_.seed)},
                     {"data.shuffle", config_.shuffle}},
          .place = {}};
}

std::string TokenSamples::state() const {
  return to_json(identity());
}

void TokenSamples::restore(const std::string& state) {
  read_state(state, identity());
}

}  // namespace llm
