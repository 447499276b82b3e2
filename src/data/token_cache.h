#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/data/corpus.h"
#include "src/data/tokenizer.h"

namespace llm {

/// Token files that read as one stream, and what they were when they were checked.
struct TokenSet {
  std::vector<std::string> paths;
  std::vector<std::int64_t> n_file_tokens;  ///< one a path
  std::int64_t n_tokens = 0;                ///< their sum
  std::uint64_t data_key = 0;  ///< corpus_key and tokenizer: what a checkpoint compares
  bool built = false;          ///< tokenized now, not found in the cache
};

/// As one line of JSON, and back: rank 0 builds, the others must open the same files.
std::string to_json(const TokenSet& set);
TokenSet token_set_from_json(const std::string& json);

struct CacheConfig {
  std::string folder;  ///< made when missing
  std::int64_t vocab_size = 0;
  /// Tokens of one cache file: llm.c's header counts in 31 bits.
  std::int64_t max_file_tokens = (std::int64_t{1} << 31) - 1;
  /// Called between pieces of at most a few MB, with bytes read and in all; may be empty.
  std::function<void(std::int64_t n_done, std::int64_t n_bytes)> on_progress;
};

/// Tokenizes `corpus` into llm.c token files below `config.folder`, or finds that done: the cache
/// of a corpus (patterns, text field, tokenizer) is one folder, used when the paths, sizes and
/// times of the files are what it was built from and its own files are whole (sizes, and checksums
/// up to 1 GiB), rebuilt otherwise. Written beside and renamed, so that a cache is there whole or
/// not at all, also when two runs build it. Token files are not copied: their ids are checked
/// against vocab_size, and that is remembered. Called by one rank. Throws DataError (bad data, with
/// file and place), FileError, ConfigError.
TokenSet build_cache(const Corpus& corpus, const Tokenizer& tokenizer, const CacheConfig& config);

}  // namespace llm
