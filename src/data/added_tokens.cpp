#include "src/data/added_tokens.h"

#include <algorithm>
#include <functional>

#include "src/base/utf8.h"
#include "src/data/characters.h"

namespace llm {
namespace {

/// Where the character before `at` begins; `at` itself where it is no space or lies before `from`.
std::size_t before_space(std::string_view text, std::size_t at, std::size_t from) {
  const CharacterTable& table = CharacterTable::get();
  for (std::size_t n = 1; n <= 4 && from + n <= at; ++n) {
    if (utf8_length(text, at - n) != n) continue;
    const CharacterClass c = table[character_at(text, at - n).code];
    const bool is_space = c == CharacterClass::space || c == CharacterClass::newline;
    return is_space ? at - n : at;
  }
  return at;
}

std::size_t after_space(std::string_view text, std::size_t at) {
  if (at == text.size() || utf8_length(text, at) == 0) return at;
  const Character found = character_at(text, at);
  const CharacterClass c = CharacterTable::get()[found.code];
  return c == CharacterClass::space || c == CharacterClass::newline ? at + found.n_bytes : at;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<const AddedToken*>& tokens) {
  for (const AddedToken* token : tokens) {
    tokens_.emplace(token->text, token);
    lengths_.push_back(token->text.size());
    begins_[static_cast<unsigned char>(token->text.front())] = true;
  }
  std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size() && !tokens_.empty(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    for (const std::size_t n : lengths_) {
      if (at + n > text.size()) continue;
      const auto found = tokens_.find(text.substr(at, n));
      if (found == tokens_.end()) continue;
      const AddedToken& token = *found->second;
      Match match{.begin = at, .end = at + n, .id = token.id};
      if (token.takes_space_before) {
        for (std::size_t i = at; match.begin = i, (i = before_space(text, i, from)) < match.begin;);
      }
      if (token.takes_space_after) {
        for (std::size_t i = match.end; match.end = i, (i = after_space(text, i)) > match.end;);
      }
      return match;
    }
  }
  return {.begin = text.size(), .end = text.size(), .id = -1};
}

bool AddedTokens::may_span(std::string_view text, std::size_t at) const {
  for (const auto& [spelling, token] : tokens_) {
    for (std::size_t n_before = 1; n_before < spelling.size() && n_before <= at; ++n_before) {
      const std::size_t n = std::min(spelling.size(), text.size() - (at - n_before));
      if (text.substr(at - n_before, n) == spelling.substr(0, n)) return true;
    }
  }
  return false;
}

}  // namespace llm
