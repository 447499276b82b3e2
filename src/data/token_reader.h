#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/file.h"
#include "src/data/corpus.h"
#include "src/data/token_file.h"
#include "src/data/tokenizer.h"

namespace llm {

/// A piece of a corpus of text, before it is encoded.
struct TextPiece {
  std::string text;               ///< may be empty
  bool follows_document = false;  ///< the end token stands before it
};

/// Reads a corpus as one stream of tokens, piece by piece, in the order of its files: what `lm`
/// caches and `stream_lm` trains on. Holds one piece: at most 64 KiB of text, or one line of a
/// .jsonl file.
class TokenReader {
 public:
  /// A place between two pieces, from which reading can go on.
  struct Place {
    std::int64_t file = 0;     ///< index into the corpus
    std::int64_t byte = 0;     ///< in that file; the token's index in a token file
    std::int64_t line = 1;     ///< of a .jsonl file, for messages
    bool in_document = false;  ///< the document at `byte` has given tokens already
    bool after_document =
        false;  ///< a document came before: the next one starts with the end token
    bool operator==(const Place&) const = default;
  };

  /// `tokenizer` outlives the reader. Ids of token files are checked against vocab_size.
  TokenReader(Corpus corpus, const Tokenizer& tokenizer, std::int64_t vocab_size);
  /// Appends the tokens of the next piece to `tokens` (possibly none, of an empty line); false at
  /// the end of the corpus. DataError names file and line of what is malformed; FileError a file
  /// that changed.
  bool next(std::vector<std::int32_t>& tokens);
  /// The same without encoding, of a corpus that is text: encoding piece after piece gives the
  /// tokens of next().
  bool next_text(TextPiece& piece);
  const Place& place() const { return place_; }
  /// Goes on from a place that place() has given. The first place is Place{}.
  void seek(const Place& place);
  /// Bytes of the corpus before place(); of token files about half.
  std::int64_t n_bytes_done() const { return bytes_before_ + place_.byte; }

 private:
  void open_current();
  void end_of_file();
  void read_tokens(std::vector<std::int32_t>& tokens);
  void read_text(TextPiece& piece);
  void read_line(TextPiece& piece);
  void take_text(std::string_view text, TextPiece& piece);
  std::string_view fill(std::size_t n_bytes);

  Corpus corpus_;
  const Tokenizer& tokenizer_;
  std::int64_t vocab_size_;
  Place place_;
  std::unique_ptr<InputFile> text_file_;
  std::unique_ptr<TokenFile> token_file_;
  std::int64_t bytes_before_ = 0;  // of the files before the current one
  std::string buffer_;             // bytes of text_file_ ...
  std::size_t buffer_begin_ = 0;   // ... from place_.byte on, which is here
  TextPiece piece_;
};

}  // namespace llm
