#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llm {

enum class SourceKind { text, jsonl, tokens };

/// One file of a corpus, as it was when the corpus was listed.
struct SourceFile {
  std::string path;
  SourceKind kind = SourceKind::text;
  std::int64_t n_bytes = 0;
  std::int64_t modified_ns = 0;  ///< since the epoch of the file system's clock
};

/// What data.dataset_path names. Files of text are documents; a .jsonl file is one document a line.
/// Documents are joined by the tokenizer's end token: one between two documents, none at either end
/// of the corpus; empty documents are skipped. Token files (.bin) are taken as they are, one after
/// the other: their writer has put the end tokens.
struct Corpus {
  std::vector<std::string> patterns;  ///< as configured
  std::string text_field;             ///< of .jsonl lines
  std::vector<SourceFile> files;      ///< not empty; in the order of expand_patterns
  bool is_tokens() const { return files.front().kind == SourceKind::tokens; }
  std::int64_t n_bytes() const;
};

struct CorpusConfig {
  std::vector<std::string> patterns;
  std::string text_field = "text";
  std::string field = "data.dataset_path";  ///< the configuration field, for messages
};

/// Lists the files of `patterns` (expand_patterns): .jsonl is JSON lines, .bin is tokens,
/// everything else is text. Throws DataError naming the field when nothing is named, a pattern
/// matches nothing, or token files are mixed with text; FileError when a file cannot be read.
Corpus find_corpus(const CorpusConfig& config);

/// A value over the order, names (without folders) and sizes of the files, and for text over the
/// name of the tokenizer: a checkpoint that holds it notices other data, and is content with files
/// that were moved or touched.
std::uint64_t corpus_key(const Corpus& corpus, const std::string& tokenizer);

/// As one line of JSON, and back: rank 0 lists the files, the others must see the same list.
std::string to_json(const Corpus& corpus);
Corpus corpus_from_json(const std::string& json);

}  // namespace llm
