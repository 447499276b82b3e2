#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llm {

/// Cuts text into the pieces across which BPE does not merge. Immutable, for any number of threads.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// Appends the end of each piece of `text`, which is valid UTF-8, in bytes from its begin and
  /// with `offset` added. Pieces are not empty and cover the text: the last end is its size.
  virtual void split(std::string_view text, std::size_t offset,
                     std::vector<std::size_t>& ends) const = 0;
  /// A place inside `text` (valid UTF-8), the last that is found, where it can be cut whatever
  /// follows: the texts before and behind are split apart as they are together; 0: there is none.
  virtual std::size_t sure_end(std::string_view text) const = 0;
};

/// What a tokenizer.json says about one cut.
struct SplitRule {
  std::string pattern;
  bool is_literal = false;  ///< the pattern is text, not a regular expression
};

extern const char* const gpt2_pattern;    ///< of ByteLevel's use_regex
extern const char* const llama3_pattern;  ///< of Llama 3's Split

/// Each match of `rule` is a piece, and so is what lies between two. GPT-2's and Llama 3's patterns
/// are scanned by hand, all others by PCRE2: same pieces, half the time.
///   place  what the pattern is called in messages
/// DataError for a pattern that is no regular expression, or that means something else to the
/// library for which tokenizer.json files are written (Oniguruma).
std::unique_ptr<Splitter> make_splitter(const SplitRule& rule, const std::string& place);

/// One of the two scanners; nullptr for another pattern.
std::unique_ptr<Splitter> make_scanner(const std::string& pattern);

}  // namespace llm
