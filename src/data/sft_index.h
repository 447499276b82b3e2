#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "src/data/corpus.h"
#include "src/data/sft_example.h"
#include "src/data/tokenizer.h"

namespace llm {

/// Where an example lies, and how long it is.
struct SftPlace {
  std::int64_t byte = 0;      ///< in its file
  std::int64_t n_bytes = 0;   ///< of its line
  std::int32_t file = 0;      ///< index into the corpus
  std::int32_t n_tokens = 0;  ///< at most T + 1: a longer example is cut at its end
};

/// The examples of a corpus in its order, without those that teach nothing: each has a label.
/// Small (24 bytes an example): lines stay in their files and are read again when they are wanted.
struct SftIndex {
  Corpus corpus;
  std::int64_t seq_len = 0;
  std::vector<SftPlace> examples;
  std::int64_t n_skipped = 0;    ///< no answer with text, or cut off before one
  std::int64_t n_truncated = 0;  ///< of `examples`: longer than T + 1 tokens
};

/// For ranks that get the index from another one.
std::string to_bytes(const SftIndex& index);
SftIndex sft_index_from_bytes(const std::string& bytes);

struct SftIndexConfig {
  std::int64_t seq_len = 0;
  std::string field = "data.dataset_path";  ///< that names the corpus, for messages
  /// Called now and then with bytes read and in all; may be empty.
  std::function<void(std::int64_t n_done, std::int64_t n_bytes)> on_progress;
};

/// Reads every line of the corpus, and so finds each malformed one: DataError names file and line.
/// DataError too where a file is not .jsonl, or no example teaches anything (with the counts).
SftIndex index_examples(const Corpus& corpus, const Tokenizer& tokenizer,
                        const SftIndexConfig& config);

/// Reads examples again, by their place.
class SftReader {
 public:
  /// `tokenizer` outlives the reader.
  SftReader(SftIndex index, const Tokenizer& tokenizer);
  const SftIndex& index() const { return index_; }
  /// At most T + 1 tokens. DataError or FileError naming the file when it is not what it was.
  SftTokens read(std::int64_t example);
  /// A value over files, tokenizer and template: what a checkpoint compares.
  std::uint64_t data_key() const { return data_key_; }

 private:
  const InputFile& file(std::int32_t index);

  SftIndex index_;
  const Tokenizer& tokenizer_;
  std::uint64_t data_key_;
  std::vector<std::unique_ptr<InputFile>> open_files_;
  std::int64_t n_open_ = 0;
};

}  // namespace llm
