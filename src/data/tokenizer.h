#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llm {

/// Text to token ids and back. Immutable: one object may serve any number of readers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Every id lies in [0, n_ids()).
  virtual std::int64_t n_ids() const = 0;
  /// The token that stands between two documents.
  virtual std::int32_t end_id() const = 0;
  /// Names the tokenizer and its version. Two tokenizers with one name give the same ids, so that a
  /// cached token file may be used by both.
  virtual std::string name() const = 0;
  /// The largest n such that text[0, n) can be encoded now whatever follows: encoding it and later
  /// the rest gives the ids of the whole. 0 means that more text is needed.
  virtual std::size_t safe_prefix(std::string_view text) const = 0;
  /// Appends the ids of `text` to `ids`. `text` is plain text: the spelling of a special token in
  /// it is not that token.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// The same, but the spellings of special tokens are those tokens: for prompts and templates of
  /// this program's user, never for data.
  virtual void encode_with_special(std::string_view text, std::vector<std::int32_t>& ids) const {
    encode(text, ids);
  }
  /// Appends the bytes of `ids` to `text`; decode(encode(text)) is `text` for any bytes.
  /// An id outside [0, n_ids()) throws DataError.
  virtual void decode(std::span<const std::int32_t> ids, std::string& text) const = 0;
};

/// 256 ids: an id is a byte. The end token is byte 0 (NUL), which text does not use, so that a
/// vocabulary of 256 holds everything; a NUL inside a document therefore reads as its end.
class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t n_ids() const override { return 256; }
  std::int32_t end_id() const override { return 0; }
  std::string name() const override { return "byte"; }
  std::size_t safe_prefix(std::string_view text) const override { return text.size(); }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void decode(std::span<const std::int32_t> ids, std::string& text) const override;
};

/// Refuses with ConfigError (both numbers) a model.vocab_size below the tokenizer's n_ids().
void check_vocab_size(std::int64_t vocab_size, const Tokenizer& tokenizer);

}  // namespace llm
