#include "src/base/utf8.h"

#include <cstdint>

namespace llm {
namespace {

/// What a first byte says: the length, and between what the second byte lies.
struct Lead {
  std::size_t length;
  std::uint8_t least;
  std::uint8_t most;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

/// Whether the bytes from `at` to the end begin a character and lack its rest.
bool is_cut(std::string_view text, std::size_t at) {
  const std::size_t n_there = text.size() - at;
  const Lead lead = lead_of(static_cast<std::uint8_t>(text[at]));
  if (n_there >= lead.length) return false;
  for (std::size_t i = 1; i < n_there; ++i) {
    const auto byte = static_cast<std::uint8_t>(text[at + i]);
    if (byte < (i == 1 ? lead.least : 0x80) || byte > (i == 1 ? lead.most : 0xBF)) return false;
  }
  return true;
}

constexpr const char* replacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[at + i]); };
  const Lead lead = lead_of(byte(0));
  if (at + lead.length > text.size()) return 0;
  for (std::size_t i = 1; i < lead.length; ++i) {
    const std::uint8_t least = i == 1 ? lead.least : 0x80;
    const std::uint8_t most = i == 1 ? lead.most : 0xBF;
    if (byte(i) < least || byte(i) > most) return 0;
  }
  return lead.length;
}

std::string shown_text(std::string_view text) {
  std::string out = "  ";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = utf8_length(text, at);
    const auto byte = static_cast<std::uint8_t>(text[at]);
    if (text[at] == '\n') {
      out += "\n  ";
    } else if (n == 0) {
      out += replacement;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += ' ';
    } else {
      out += text.substr(at, n);
    }
    at += n == 0 ? 1 : n;
  }
  return out;
}

std::string TextStream::add(std::string_view bytes) {
  waiting_ += bytes;
  return take(false);
}

std::string TextStream::finish() {
  return take(true);
}

std::string TextStream::take(bool is_end) {
  std::string out;
  std::size_t at = 0;
  while (at < waiting_.size()) {
    const std::size_t n = utf8_length(waiting_, at);
    if (n == 0 && !is_end && is_cut(waiting_, at)) break;
    const auto byte = static_cast<std::uint8_t>(waiting_[at]);
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    if (n == 0) {
      out += replacement;
    } else {
      out += is_control ? std::string(" ") : waiting_.substr(at, n);
    }
    at += n == 0 ? 1 : n;
  }
  waiting_.erase(0, at);
  return out;
}

}  // namespace llm
