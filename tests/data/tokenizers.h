#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/file.h"
#include "src/data/bpe_tokenizer.h"
#include "src/data/byte_level.h"
#include "tests/data/files.h"

namespace llm::test {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

/// A file that golden_tokenizers.py made.
inline Json golden_json(const std::string& name) {
  return Json::parse(read_file(std::string(GOLDEN_FOLDER) + "/" + name));
}

inline BpeTokenizer tokenizer_of(const Json& json, const std::string& config = "") {
  return BpeTokenizer({.path = "t.json", .json = json.dump(), .config = config});
}

inline BpeTokenizer golden_tokenizer(const std::string& kind) {
  return tokenizer_of(golden_json("tokenizer_" + kind + ".json"));
}

/// The smallest tokenizer.json: 256 bytes (id: the byte), " t" and " the" (256, 257, 258) and
/// <|endoftext|> (259).
inline Json small_json() {
  Json vocab = Json::object();
  const auto add = [&](const std::string& token) { vocab[token] = vocab.size(); };
  for (int byte = 0; byte < 256; ++byte)
    add(token_of_bytes(std::string(1, static_cast<char>(byte))));
  for (const char* const token : {"Ġt", "he", "Ġthe"}) add(token);
  return {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 259}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"Ġ t", "h e", "Ġt he"}}}}};
}

inline Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

inline std::string text_of(const Tokenizer& tokenizer, const Ids& ids) {
  std::string text;
  tokenizer.decode(ids, text);
  return text;
}

/// The pieces, with | between.
inline std::string pieces_of(const Splitter& splitter, const std::string& text) {
  std::vector<std::size_t> ends;
  splitter.split(text, 0, ends);
  std::string shown;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    shown += (begin > 0 ? "|" : "") + text.substr(begin, end - begin);
    begin = end;
  }
  return begin == text.size() ? shown : "does not cover the text";
}

}  // namespace llm::test
