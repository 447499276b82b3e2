#include <array>

#include "src/data/characters.h"
#include "src/data/splitter.h"

namespace llm {

const char* const gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

using enum CharacterClass;

bool is_space(CharacterClass c) {
  return c == space || c == newline;
}

/// Text with the classes of its characters; `at` always begins a character or is the end.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text), table_(CharacterTable::get()) {}
  bool ends_at(std::size_t at) const { return at >= text_.size(); }
  char byte(std::size_t at) const { return ends_at(at) ? '\0' : text_[at]; }
  /// `other` at the end.
  CharacterClass class_at(std::size_t at) const {
    return ends_at(at) ? other : table_[character_at(text_, at).code];
  }
  std::size_t after(std::size_t at) const { return at + character_at(text_, at).n_bytes; }
  template <class Wanted>
  std::size_t end_of_run(std::size_t at, Wanted wanted) const {
    while (!ends_at(at)) {
      const Character c = character_at(text_, at);
      if (!wanted(table_[c.code])) break;
      at += c.n_bytes;
    }
    return at;
  }
  std::size_t end_of_run(std::size_t at, CharacterClass wanted) const {
    return end_of_run(at, [wanted](CharacterClass c) { return c == wanted; });
  }
  /// `\s+(?!\S)|\s+` where a space begins: the last character of two and more belongs to what
  /// follows.
  std::size_t end_of_space(std::size_t at) const {
    std::size_t last = at;
    std::size_t end = at;
    while (!ends_at(end) && is_space(class_at(end))) {
      last = end;
      end = after(end);
    }
    return ends_at(end) || last == at ? end : last;
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  const CharacterTable& table_;
};

/// `'s|'t|'re|'ve|'m|'ll|'d` in lower case; 0 where there is none.
std::size_t contraction(std::string_view text, std::size_t at) {
  const char first = at + 1 < text.size() ? text[at + 1] : '\0';
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = at + 2 < text.size() ? text[at + 2] : '\0';
  const bool is_long =
      ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return is_long ? 3 : 0;
}

/// The same without regard to case; U+017F, the long s, is a small S.
std::size_t contraction_of_any_case(std::string_view text, std::size_t at) {
  if (text.substr(at + 1).starts_with("\xC5\xBF")) return 3;
  const auto lower = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const std::array<char, 3> three{'\'', lower(at + 1), lower(at + 2)};
  return contraction({three.data(), three.size()}, 0);
}

struct Gpt2 {
  static std::size_t end_of_piece(const Scan& scan, std::size_t at) {
    if (scan.byte(at) == '\'') {
      if (const std::size_t n = contraction(scan.text(), at)) return at + n;
    }
    const std::size_t begin = at;
    if (scan.byte(at) == ' ' && !scan.ends_at(at + 1)) ++at;
    const CharacterClass c = scan.class_at(at);
    if (is_space(c)) return scan.end_of_space(begin);
    return scan.end_of_run(at, c);
  }
};

struct Llama3 {
  static std::size_t end_of_piece(const Scan& scan, std::size_t at) {
    if (scan.byte(at) == '\'') {
      if (const std::size_t n = contraction_of_any_case(scan.text(), at)) return at + n;
    }
    const CharacterClass c = scan.class_at(at);
    if (c == letter) return scan.end_of_run(at, letter);
    if (c == number) return end_of_number(scan, at);
    const std::size_t second = scan.after(at);
    if (c != newline && scan.class_at(second) == letter) return scan.end_of_run(second, letter);
    const bool is_led = scan.byte(at) == ' ' && !scan.ends_at(second);
    if (c == other || (is_led && scan.class_at(second) == other)) {
      return scan.end_of_run(scan.end_of_run(second, other), newline);
    }
    return end_of_lines(scan, at);
  }

 private:
  /// `\p{N}{1,3}`
  static std::size_t end_of_number(const Scan& scan, std::size_t at) {
    for (int n = 0; n < 3 && scan.class_at(at) == number; ++n) at = scan.after(at);
    return at;
  }

  /// `\s*[\r\n]+|\s+(?!\S)|\s+` where a space begins.
  static std::size_t end_of_lines(const Scan& scan, std::size_t begin) {
    std::size_t after_newline = 0;
    for (std::size_t at = begin; !scan.ends_at(at);) {
      const CharacterClass c = scan.class_at(at);
      if (!is_space(c)) break;
      at = scan.after(at);
      if (c == newline) after_newline = at;
    }
    return after_newline > 0 ? after_newline : scan.end_of_space(begin);
  }
};

template <class Rules>
class Scanner final : public Splitter {
 public:
  void split(std::string_view text, std::size_t offset,
             std::vector<std::size_t>& ends) const override {
    const Scan scan(text);
    for (std::size_t at = 0; !scan.ends_at(at);) {
      at = Rules::end_of_piece(scan, at);
      ends.push_back(offset + at);
    }
  }

  /// In both patterns a run of letters or numbers ends at a character of another class, and a piece
  /// ends before a blank that follows upon anything but space.
  std::size_t sure_end(std::string_view text) const override {
    const Scan scan(text);
    CharacterClass next = other;
    std::size_t next_at = text.size();
    for (std::size_t at = text.size(); at > 0;) {
      for (--at; (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;) --at;
      const CharacterClass here = scan.class_at(at);
      const bool ends_word = (here == letter || here == number) && next != here;
      const bool ends_at_blank = !is_space(here) && scan.byte(next_at) == ' ';
      if (next_at < text.size() && (ends_word || ends_at_blank)) return next_at;
      next = here;
      next_at = at;
    }
    return 0;
  }
};

}  // namespace

std::unique_ptr<Splitter> make_scanner(const std::string& pattern) {
  if (pattern == gpt2_pattern) return std::make_unique<Scanner<Gpt2>>();
  if (pattern == llama3_pattern) return std::make_unique<Scanner<Llama3>>();
  return nullptr;
}

}  // namespace llm
