#include "src/data/bpe_tokenizer.h"

#include <fmt/core.h>

#include <filesystem>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/philox.h"
#include "src/base/utf8.h"

namespace llm {
namespace {

constexpr std::uint64_t code_version = 1;  // another one gives other ids from the same file

/// The longest well-formed UTF-8 at the begin of `text`.
std::size_t valid_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const std::size_t n = utf8_length(text, at);
    if (n == 0) break;
    at += n;
  }
  return at;
}

std::size_t invalid_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && utf8_length(text, at) == 0) ++at;
  return at;
}

/// Without the last bytes that may begin a character which goes on behind them.
std::string_view without_cut_character(std::string_view text) {
  for (std::size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if (byte < 0x80) break;
    if (byte < 0xC0) continue;
    return utf8_length(text, text.size() - n) == 0 ? text.substr(0, text.size() - n) : text;
  }
  return text;
}

}  // namespace

TokenizerFiles read_tokenizer_files(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const bool is_folder = fs::is_directory(path, unknown);
  const fs::path file = is_folder ? fs::path(path) / "tokenizer.json" : fs::path(path);
  TokenizerFiles files{.path = file.string(), .json = read_file(file), .config = ""};
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  if (fs::exists(config, unknown)) files.config = read_file(config);
  return files;
}

BpeTokenizer::BpeTokenizer(const TokenizerFiles& files)
    : spec_(read_tokenizer_json(files.json, files.config, files.path)),
      bpe_(spec_),
      plain_stages_(stages(false)),
      special_stages_(stages(true)) {
  std::uint64_t key = mix_key(code_version, files.json);
  key = mix_key(key, static_cast<std::uint64_t>(spec_.end_id));
  name_ = fmt::format("bpe-{:016x}", key);
  for (std::size_t i = 0; i < spec_.splits.size(); ++i) {
    splitters_.push_back(make_splitter(spec_.splits[i], spec_.places[i]));
  }
}

BpeTokenizer::Stages BpeTokenizer::stages(bool with_special) const {
  Stages made;
  for (const bool normalized : {false, true}) {
    std::vector<const AddedToken*> tokens;
    for (const AddedToken& token : spec_.added) {
      const bool is_found = with_special || !token.is_special;
      if (is_found && token.is_normalized == normalized) tokens.push_back(&token);
    }
    if (!tokens.empty()) made.emplace_back(tokens);
  }
  return made;
}

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  encode_from(plain_stages_, 0, text, ids);
}

void BpeTokenizer::encode_with_special(std::string_view text,
                                       std::vector<std::int32_t>& ids) const {
  encode_from(special_stages_, 0, text, ids);
}

void BpeTokenizer::encode_from(const Stages& stages, std::size_t stage, std::string_view text,
                               std::vector<std::int32_t>& ids) const {
  if (stage == stages.size()) return encode_plain(text, ids);
  for (std::size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = stages[stage].find(text, at);
    encode_from(stages, stage + 1, text.substr(at, match.begin - at), ids);
    if (match.id >= 0) ids.push_back(match.id);
    at = match.end;
  }
}

void BpeTokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, valid_length(text));
    std::size_t begin = 0;
    for (const std::size_t end : split(valid)) {
      bpe_.encode(valid.substr(begin, end - begin), ids);
      begin = end;
    }
    text.remove_prefix(valid.size());
    const std::string_view invalid = text.substr(0, invalid_length(text));
    if (!invalid.empty()) bpe_.encode(invalid, ids);
    text.remove_prefix(invalid.size());
  }
}

/// The ends of the pieces of well-formed text.
std::vector<std::size_t> BpeTokenizer::split(std::string_view text) const {
  std::vector<std::size_t> ends;
  if (text.empty()) return ends;
  if (splitters_.empty()) return {text.size()};
  splitters_.front()->split(text, 0, ends);
  for (std::size_t i = 1; i < splitters_.size(); ++i) {
    std::vector<std::size_t> finer;
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      splitters_[i]->split(text.substr(begin, end - begin), begin, finer);
      begin = end;
    }
    ends = std::move(finer);
  }
  return ends;
}

std::size_t BpeTokenizer::safe_prefix(std::string_view text) const {
  const std::string_view whole = text;
  for (std::size_t at = sure_end(text); at > 0; at = sure_end(whole.substr(0, at))) {
    if (!may_span(whole, at)) return at;
  }
  return 0;
}

bool BpeTokenizer::may_span(std::string_view text, std::size_t at) const {
  for (const AddedTokens& tokens : plain_stages_) {
    if (tokens.may_span(text, at)) return true;
  }
  return false;
}

/// An end of a piece inside `text` that stays one, but for added tokens that lie across it.
std::size_t BpeTokenizer::sure_end(std::string_view text) const {
  const std::string_view whole_characters = without_cut_character(text);
  if (splitters_.empty()) return 0;
  // Pieces are counted from the last added token or bytes that are no UTF-8.
  std::size_t begin = 0;
  for (const AddedTokens& tokens : plain_stages_) {
    for (AddedTokens::Match match; match.end < whole_characters.size();) {
      match = tokens.find(whole_characters, match.end);
      if (match.id >= 0) begin = std::max(begin, match.end);
    }
  }
  for (std::size_t at = begin; at < whole_characters.size();) {
    at += valid_length(whole_characters.substr(at));
    const std::size_t n_invalid = invalid_length(whole_characters.substr(at));
    at += n_invalid;
    if (n_invalid > 0 && at < whole_characters.size()) begin = at;
    if (n_invalid > 0 && at == whole_characters.size()) return begin;
  }
  const std::size_t n = splitters_.front()->sure_end(whole_characters.substr(begin));
  return n > 0 ? begin + n : begin < whole_characters.size() ? begin : 0;
}

void BpeTokenizer::decode(std::span<const std::int32_t> ids, std::string& text) const {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= n_ids()) {
      throw DataError(
          fmt::format("token id {} is none of the {} ids of the tokenizer {}", id, n_ids(), name_));
    }
    text += bpe_.bytes_of(id);
  }
}

}  // namespace llm
