#include "src/data/characters.h"

#include <string>
#include <vector>

#include "src/base/range.h"
#include "src/data/pattern.h"

namespace llm {
namespace {

void append(char32_t code, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

}  // namespace

CharacterTable::CharacterTable() {
  std::string text;
  for (char32_t code = 0; code < n_codes; ++code) {
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (!is_surrogate) append(code, text);
  }
  const auto set = [&](const char* pattern, CharacterClass to) {
    for (const Range& match : Pattern({pattern, false}, pattern).find_all(text)) {
      for (auto at = static_cast<std::size_t>(match.begin);
           at < static_cast<std::size_t>(match.end);) {
        const Character c = character_at(text, at);
        classes_[c.code] = to;
        at += c.n_bytes;
      }
    }
  };
  set("\\p{L}+", CharacterClass::letter);
  set("\\p{N}+", CharacterClass::number);
  set("\\s+", CharacterClass::space);
  set("[\\r\\n]", CharacterClass::newline);
}

const CharacterTable& CharacterTable::get() {
  static const CharacterTable table;
  return table;
}

}  // namespace llm
