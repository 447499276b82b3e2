#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/splitter.h"

namespace llm {

/// A token that is found in text before it is split.
struct AddedToken {
  std::int32_t id = 0;
  std::string text;
  bool is_special = false;  ///< found only where special tokens are asked for
  bool is_normalized = false;
  bool takes_space_before = false;
  bool takes_space_after = false;
};

/// Two tokens that become one.
struct Merge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t merged = 0;
};

/// A byte-level BPE tokenizer, as its tokenizer.json says.
struct BpeSpec {
  struct Token {
    std::string bytes;       ///< empty: no token has the id
    bool is_spelled = true;  ///< in byte-level's alphabet, so that text can become it
  };
  std::vector<Token> tokens;        ///< by id; all 256 single bytes are among them
  std::vector<Merge> merges;        ///< by rank, no pair twice
  std::vector<AddedToken> added;    ///< their ids lie in `tokens` too
  std::vector<SplitRule> splits;    ///< one after the other, each cuts the pieces of the former
  std::vector<std::string> places;  ///< of `splits`, for messages
  bool ignores_merges = false;      ///< a piece that is a token is that token
  std::int32_t end_id = -1;         ///< the token between documents
};

/// Reads tokenizer.json (Hugging Face's format, the byte-level BPE part of it): the model BPE with
/// merges as "a b" or ["a", "b"]; pre-tokenizers ByteLevel, Split and Digits, alone or in a
/// Sequence; added tokens. Post-processors, truncation and padding are of no concern here: ids are
/// those of the text alone.
///   json    the file's text
///   config  the text of the tokenizer_config.json beside it, whose eos_token ends documents;
///   empty:
///           there is none, then it is the special token <|endoftext|>, <|end_of_text|>, </s>,
///           <eos> or the only special one
///   path    of the file, for messages
/// DataError naming the file and the place in it: no JSON, a name twice, a field that is missing or
/// of another type, ids twice or far apart, a byte without a token, a merge of what is no token,
/// and everything that makes ids depend on more than this program does (normalizers, byte_fallback,
/// dropout, affixes, ...): nothing is passed over.
BpeSpec read_tokenizer_json(std::string_view json, std::string_view config,
                            const std::string& path);

}  // namespace llm
