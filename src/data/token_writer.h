#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/file.h"

namespace llm {

/// llm.c: a header (TokenHeader), then u16 tokens when every id fits, u32 otherwise. nanoGPT: u16
/// tokens and nothing else.
enum class TokenFormat : std::uint8_t { llmc, nanogpt };

/// Writes one token file.
class TokenWriter {
 public:
  struct Config {
    std::string path;
    std::int64_t n_ids = 0;  ///< ids lie below; up to 65,536 they are stored in two bytes
    TokenFormat format = TokenFormat::llmc;  ///< nanoGPT's takes no more than 65,536 ids
  };
  explicit TokenWriter(const Config& config);
  /// Ids in [0, n_ids).
  void write(const std::int32_t* ids, std::int64_t n);
  /// All of the file is on disk; returns the checksum of the tokens (checksum_tokens).
  std::uint64_t finish();
  std::int64_t n_tokens() const { return n_tokens_; }

 private:
  void flush();

  OutputFile file_;
  bool wide_;
  bool has_header_;
  std::int64_t n_tokens_ = 0;
  std::vector<std::byte> block_;
  std::uint64_t checksum_ = 0;
};

/// The checksum of a token file's tokens as they are stored; notices damage, not malice.
std::uint64_t checksum_tokens(const std::string& path);

}  // namespace llm
