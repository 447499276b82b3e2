#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/sample_order.h"
#include "src/data/sample_source.h"
#include "src/data/source_state.h"
#include "src/data/token_cache.h"
#include "src/data/token_file.h"

namespace llm {

/// Random access to the tokens of a TokenSet; files are read by position, never mapped, so that a
/// file that shrinks is an error and not a signal.
class TokenStore {
 public:
  /// Throws FileError or DataError when a file is not what the set says.
  TokenStore(const TokenSet& set, std::int64_t vocab_size);
  std::int64_t n_tokens() const { return set_.n_tokens; }
  std::uint64_t data_key() const { return set_.data_key; }
  /// Tokens [begin, begin + n) of the stream, inside it. DataError (file, place, id, vocab_size)
  /// for an id that the model does not have.
  void read(std::int64_t begin, std::int64_t n, std::int32_t* out);

 private:
  TokenFile& file(std::size_t index);

  TokenSet set_;
  std::int64_t vocab_size_;
  std::vector<std::int64_t> first_token_;  // of each file, and the total
  std::vector<std::unique_ptr<TokenFile>> open_files_;
  std::size_t n_open_ = 0;
};

/// The samples of task `lm`: a range of a TokenStore's samples in the order of SampleOrder.
class TokenSamples final : public SampleSource {
 public:
  struct Config {
    std::int64_t seq_len = 0;
    Range samples;  ///< of the store's count_samples(n_tokens, seq_len); not empty
    std::uint64_t seed = 0;
    bool shuffle = true;
  };
  TokenSamples(std::shared_ptr<TokenStore> store, const Config& config);
  std::int64_t seq_len() const override { return config_.seq_len; }
  std::int64_t n_samples() const override { return config_.samples.size(); }
  void fetch(std::int64_t position, SampleOut out) override;
  std::string state() const override;
  void restore(const std::string& state) override;

 private:
  SourceState identity() const;

  std::shared_ptr<TokenStore> store_;
  Config config_;
  SampleOrder order_;
  std::vector<std::int32_t> window_;  // T + 1 tokens
};

}  // namespace llm
