#include "src/data/tokenizer.h"

#include <fmt/core.h>

#include "src/base/error.h"

namespace llm {

void ByteTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t n_before = ids.size();
  ids.resize(n_before + text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    ids[n_before + i] = static_cast<unsigned char>(text[i]);
  }
}

void ByteTokenizer::decode(std::span<const std::int32_t> ids, std::string& text) const {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= n_ids()) {
      throw DataError(fmt::format("token id {} is none of the byte tokenizer's {}", id, n_ids()));
    }
    text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
  }
}

void check_vocab_size(std::int64_t vocab_size, const Tokenizer& tokenizer) {
  if (vocab_size < tokenizer.n_ids()) {
    throw ConfigError(
        fmt::format("model.vocab_size: {} is below the {} ids of the {} tokenizer; use {} or more",
                    vocab_size, tokenizer.n_ids(), tokenizer.name(), tokenizer.n_ids()));
  }
}

}  // namespace llm
