#include "src/data/byte_level.h"

#include <array>

#include "src/data/characters.h"

namespace llm {
namespace {

constexpr int n_characters = 324;  // 68 bytes stand at 256 and up

struct Alphabet {
  std::array<int, n_characters> byte_of{};  // -1: none
  std::array<char32_t, 256> character_of{};
  Alphabet() {
    byte_of.fill(-1);
    char32_t moved = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool stays = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      const char32_t character = stays ? static_cast<char32_t>(byte) : moved++;
      byte_of[character] = byte;
      character_of[static_cast<std::size_t>(byte)] = character;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const Character c = character_at(token, at);
    const int byte = c.code < n_characters ? alphabet().byte_of[c.code] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    at += c.n_bytes;
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) {
    const char32_t c = alphabet().character_of[static_cast<unsigned char>(byte)];
    if (c < 0x80) {
      token.push_back(static_cast<char>(c));
    } else {
      token.push_back(static_cast<char>(0xC0 | c >> 6));
      token.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
  return token;
}

}  // namespace llm
