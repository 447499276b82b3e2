#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "src/data/tokenizer_json.h"

namespace llm {

/// Finds tokens in text as they are spelled: the leftmost, and of those the longest.
class AddedTokens {
 public:
  /// A token's text in text: [begin, end), with the space that the token takes.
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t id = -1;  ///< -1: none
  };

  /// `tokens` outlive this.
  explicit AddedTokens(const std::vector<const AddedToken*>& tokens);
  bool empty() const { return tokens_.empty(); }
  /// The first in `text` from `from` on.
  Match find(std::string_view text, std::size_t from) const;
  /// Whether a token could lie across `at`, given all text before it and perhaps more behind it
  /// than there is.
  bool may_span(std::string_view text, std::size_t at) const;

 private:
  std::map<std::string_view, const AddedToken*> tokens_;
  std::vector<std::size_t> lengths_;  // of tokens, longest first
  std::array<bool, 256> begins_{};    // a token, by its first byte
};

}  // namespace llm
