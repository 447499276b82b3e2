#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llm {

/// What the known splitting patterns ask about a character: \p{L}, \p{N}, \s, and of the latter
/// whether it is \r or \n.
enum class CharacterClass : std::uint8_t { other, letter, number, space, newline };

/// A character and the bytes it takes.
struct Character {
  char32_t code = 0;
  std::size_t n_bytes = 0;
};

/// The character that begins at `at`, where well-formed UTF-8 begins one.
inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

/// The classes of all characters, by PCRE2's tables: a scanner by hand and a pattern agree.
class CharacterTable {
 public:
  /// Made at the first call, in about 10 ms.
  static const CharacterTable& get();
  CharacterClass operator[](char32_t code) const {
    return code < n_codes ? classes_[code] : CharacterClass::other;
  }

 private:
  CharacterTable();
  /// Planes 4 and up have neither letters nor numbers nor space.
  static constexpr char32_t n_codes = 0x40000;
  std::array<CharacterClass, n_codes> classes_{};
};

}  // namespace llm
