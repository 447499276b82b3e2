#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/range.h"
#include "src/data/splitter.h"

namespace llm {

/// A regular expression of a tokenizer.json, compiled by PCRE2 to mean what it means to Oniguruma,
/// for which such files are written. \p, \d and \s are Unicode's (version 14 with PCRE2 10.42).
class Pattern {
 public:
  /// DataError, beginning with `place`: no regular expression, or one with a part that PCRE2 reads
  /// otherwise (\w, \b, \h, ^, $, ...).
  Pattern(const SplitRule& rule, const std::string& place);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  /// All matches in `text` (valid UTF-8), left to right; empty ones where they do not follow upon
  /// another match. DataError when matching takes out of all proportion.
  std::vector<Range> find_all(std::string_view text) const { return find(text, false); }
  /// Those from the left which no text after `text` can change; none of a pattern that looks back.
  std::vector<Range> find_sure(std::string_view text) const { return find(text, true); }

 private:
  struct Compiled;
  std::vector<Range> find(std::string_view text, bool only_sure) const;

  std::string place_;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace llm
