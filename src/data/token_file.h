#pragma once
#include <cstdint>
#include <string>

#include "src/base/file.h"

namespace llm {

/// How a .bin file says that it is llm.c's: 256 int32 words, of which the first three count.
struct TokenHeader {
  static constexpr std::int32_t magic_u16 = 20240520;  // version 1
  static constexpr std::int32_t magic_u32 = 20240801;  // version 7
  static constexpr int n_words = 256;
  static constexpr std::int64_t n_bytes = 4 * n_words;
};

/// One file of tokens, read by position. Two layouts, told apart by the first four bytes:
///   llm.c    int32 header [magic, version, number of tokens], then u16 (magic 20240520, version 1)
///            or u32 (magic 20240801, version 7) tokens, as many as the header says
///   nanoGPT  u16 tokens from the first byte on, no header
class TokenFile {
 public:
  /// Throws DataError naming the file: empty, an odd length, another version, llm.c's magic of
  /// something else than training tokens, a count that is not the file's size; FileError when it
  /// cannot be read.
  explicit TokenFile(const std::string& path);
  std::int64_t n_tokens() const { return n_tokens_; }
  std::string path() const { return file_.path().string(); }
  /// Reads tokens [begin, begin + n), inside the file, as stored (u32 ids from 2^31 on are
  /// negative). FileError when the file has become shorter.
  void read(std::int64_t begin, std::int64_t n, std::int32_t* out) const;

 private:
  InputFile file_;
  int token_bytes_ = 2;
  std::int64_t header_bytes_ = 0;
  std::int64_t n_tokens_ = 0;
};

/// Refuses with DataError (file, place, id, vocab_size) an id outside [0, vocab_size).
///   first  place in the file of ids[0]
void check_ids(const std::string& path, std::int64_t first, std::int64_t vocab_size,
               const std::int32_t* ids, std::int64_t n);

}  // namespace llm
