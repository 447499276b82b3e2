#include "src/data/pattern.h"

#include <fmt/core.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <string>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/utf8.h"

namespace llm {
namespace {

constexpr std::size_t max_pattern_bytes = 16 * 1024;  // DeepSeek's longest has 300
constexpr std::uint32_t match_limit = 1'000'000;      // steps back; known patterns take a few
constexpr std::uint32_t heap_limit_kib = 64 * 1024;

/// Writes Oniguruma's pattern as PCRE2's, or says at which part they differ.
class Translation {
 public:
  Translation(const std::string& pattern, const std::string& place)
      : pattern_(pattern), place_(place) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& part) const {
    throw DataError(
        fmt::format("{}: {} at byte {} of the pattern does not mean the same to PCRE2 as to the "
                    "library that the file is for; write it with \\p{{...}} or a class",
                    place_, part, at_));
  }
  char next(std::size_t n = 1) const {
    return at_ + n < pattern_.size() ? pattern_[at_ + n] : '\0';
  }
  void copy(std::size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }

  void step() {
    const char c = pattern_[at_];
    if (c == '\\') return escape();
    if (in_class_) return in_class(c);
    if (c == '^' || c == '$') refuse(std::string(1, c));
    if (c == '(' && next() == '*') refuse("(*");
    if (c == '(' && next() == '?') check_group();
    if (c == '[') {
      in_class_ = true;
      copy(next() == '^' ? 2 : 1);
      if (at_ < pattern_.size() && pattern_[at_] == ']') copy(1);
      return;
    }
    copy(1);
  }

  /// What may follow "(?": a group without capture, ways to look around, and the case switch.
  void check_group() const {
    const std::string_view rest = std::string_view(pattern_).substr(at_ + 2);
    for (const char* const known : {":", "=", "!", "<=", "<!", ">", "i)", "i:", "-i)", "-i:"}) {
      if (rest.starts_with(known)) return;
    }
    refuse("(?" + std::string(rest.substr(0, 1)));
  }

  void in_class(char c) {
    if (c == '[' && next() != ':') refuse("[ in a class");
    if (c == '&' && next() == '&') refuse("&& in a class");
    if (c == '[') {  // [:name:]
      const std::size_t end = pattern_.find(":]", at_ + 2);
      if (end == std::string::npos) refuse("[: in a class");
      return copy(end + 2 - at_);
    }
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void escape() {
    switch (next()) {
      case 's':
        out_ += "\\p{White_Space}";  // PCRE2's \s has U+180E too
        at_ += 2;
        return;
      case 'S':
        out_ += "\\P{White_Space}";
        at_ += 2;
        return;
      case 'u': {
        const std::string hex = pattern_.substr(at_ + 2, 4);
        if (hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) refuse("\\u");
        out_ += "\\x{" + hex + "}";
        at_ += 2 + hex.size();
        return;
      }
      default:
        break;
    }
    constexpr std::string_view same = "dDpPxtnrfaez";
    const auto byte = static_cast<unsigned char>(next());
    const bool is_word = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                         (byte >= 'a' && byte <= 'z');
    if (is_word && same.find(next()) == std::string_view::npos) {
      refuse("\\" + std::string(1, next()));
    }
    copy(2);
  }

  const std::string& pattern_;
  const std::string& place_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR bytes(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

template <auto free>
struct FreedBy {
  template <class T>
  void operator()(T* p) const {
    free(p);
  }
};
using Code = std::unique_ptr<pcre2_code, FreedBy<&pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, FreedBy<&pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreedBy<&pcre2_match_context_free>>;

}  // namespace

struct Pattern::Compiled {
  Code code;
  MatchContext context;
  bool looks_back = false;
};

Pattern::Pattern(const SplitRule& rule, const std::string& place) : place_(place) {
  if (rule.pattern.empty()) throw DataError(place + ": the pattern is empty");
  if (rule.pattern.size() > max_pattern_bytes) {
    throw DataError(fmt::format("{}: the pattern has {} bytes; {} are the most", place,
                                rule.pattern.size(), max_pattern_bytes));
  }
  std::uint32_t options = PCRE2_UTF | PCRE2_UCP;
  std::string pattern = rule.pattern;
  if (rule.is_literal) {
    options = PCRE2_UTF | PCRE2_LITERAL;
  } else {
    pattern = Translation(rule.pattern, place).run();
  }
  int error = 0;
  PCRE2_SIZE at = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(
      pcre2_compile(bytes(pattern), pattern.size(), options, &error, &at, nullptr));
  if (!compiled->code) {
    throw DataError(fmt::format("{}: the pattern is no regular expression: {} (at byte {} of it)",
                                place, message_of(error), at));
  }
  // Where the system refuses memory that can be executed, PCRE2 interprets the pattern.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  std::uint32_t look_back = 0;
  pcre2_pattern_info(compiled->code.get(), PCRE2_INFO_MAXLOOKBEHIND, &look_back);
  compiled->looks_back = look_back > 0;
  compiled->context.reset(pcre2_match_context_create(nullptr));
  CHECK_CONTRACT(compiled->context, "PCRE2 has memory for its limits");
  pcre2_set_match_limit(compiled->context.get(), match_limit);
  pcre2_set_heap_limit(compiled->context.get(), heap_limit_kib);
  compiled_ = std::move(compiled);
}

Pattern::~Pattern() = default;

std::vector<Range> Pattern::find(std::string_view text, bool only_sure) const {
  std::vector<Range> matches;
  if (only_sure && compiled_->looks_back) return matches;
  const MatchData data(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  CHECK_CONTRACT(data, "PCRE2 has memory for a match");
  const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(data.get());
  const std::uint32_t options = PCRE2_NO_UTF_CHECK | (only_sure ? PCRE2_PARTIAL_HARD : 0);
  for (std::size_t at = 0; at <= text.size();) {
    const auto match = [&](std::uint32_t more) {
      return pcre2_match(compiled_->code.get(), bytes(text), text.size(), at, options | more,
                         data.get(), compiled_->context.get());
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH || result == PCRE2_ERROR_PARTIAL) break;
    if (result < 0) {
      throw DataError(fmt::format("{}: matching the pattern failed at byte {} of a text: {}",
                                  place_, at, message_of(result)));
    }
    const Range found{static_cast<std::int64_t>(place[0]), static_cast<std::int64_t>(place[1])};
    if (found.empty() && !matches.empty() && matches.back().end == found.end) {
      at += at < text.size() ? utf8_length(text, at) : 1;
      continue;
    }
    matches.push_back(found);
    at = place[1];
  }
  return matches;
}

}  // namespace llm
