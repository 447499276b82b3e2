#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/added_tokens.h"
#include "src/data/bpe.h"
#include "src/data/splitter.h"
#include "src/data/tokenizer.h"

namespace llm {

/// The texts of a tokenizer's files, so that ranks can share them without sharing a disk.
struct TokenizerFiles {
  std::string path;    ///< of tokenizer.json, for messages
  std::string json;    ///< its text
  std::string config;  ///< of tokenizer_config.json beside it; empty: there is none
};

/// Reads the files of `path`: a tokenizer.json, or a folder with one. FileError naming it.
TokenizerFiles read_tokenizer_files(const std::string& path);

/// Byte-level BPE of a tokenizer.json (what is read of it: read_tokenizer_json), with the ids that
/// Hugging Face's library gives. Bytes that are no UTF-8 are pieces of their own, a run of them
/// each.
class BpeTokenizer final : public Tokenizer {
 public:
  /// DataError naming the file and the place in it.
  explicit BpeTokenizer(const TokenizerFiles& files);
  BpeTokenizer(const BpeTokenizer&) = delete;
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;
  /// One above the highest id.
  std::int64_t n_ids() const override { return bpe_.n_ids(); }
  std::int32_t end_id() const override { return spec_.end_id; }
  /// With a value over the files.
  std::string name() const override { return name_; }
  std::size_t safe_prefix(std::string_view text) const override;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void encode_with_special(std::string_view text, std::vector<std::int32_t>& ids) const override;
  /// An id between those of the file's tokens stands for no bytes.
  void decode(std::span<const std::int32_t> ids, std::string& text) const override;

 private:
  /// Tokens that are found before those of the next list are looked for, in what is left.
  using Stages = std::vector<AddedTokens>;
  Stages stages(bool with_special) const;
  void encode_from(const Stages& stages, std::size_t stage, std::string_view text,
                   std::vector<std::int32_t>& ids) const;
  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;
  std::vector<std::size_t> split(std::string_view text) const;
  std::size_t sure_end(std::string_view text) const;
  bool may_span(std::string_view text, std::size_t at) const;

  BpeSpec spec_;
  std::string name_;
  Bpe bpe_;
  std::vector<std::unique_ptr<Splitter>> splitters_;
  Stages plain_stages_;
  Stages special_stages_;
};

}  // namespace llm
