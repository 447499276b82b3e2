#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/data/corpus.h"
#include "src/data/token_writer.h"
#include "src/data/tokenizer.h"

namespace llm {

struct TokenizeOptions {
  std::string output;  ///< shards are named OUTPUT-00000.bin and so on
  TokenFormat format = TokenFormat::llmc;
  std::int64_t shard_tokens = 100'000'000;
  int n_threads = 1;
  /// Called on the calling thread about ten times a second, with bytes read; may be empty.
  std::function<void(std::int64_t n_bytes_done)> on_progress;
};

struct Tokenized {
  std::vector<std::string> paths;
  std::int64_t n_tokens = 0;
};

/// Writes the tokens of `corpus` (text or JSON lines: its documents with the end token between) as
/// shards, each of shard_tokens tokens but the last. The calling thread reads and writes, n_threads
/// threads encode what lies between; the files do not depend on their number. Shards get their
/// names when all are written: a run that fails leaves no shard. Throws UsageError where shards of
/// that name are there, DataError, FileError.
Tokenized tokenize_files(const Corpus& corpus, const Tokenizer& tokenizer,
                         const TokenizeOptions& options);

}  // namespace llm
