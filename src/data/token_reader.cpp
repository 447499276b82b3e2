#include "src/data/token_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {

constexpr std::size_t piece_bytes = 64 * 1024;
constexpr std::int64_t piece_tokens = 32 * 1024;

/// A message shows the beginning of what may be a line of megabytes.
std::string shortened(const std::string& text) {
  constexpr std::size_t n_max = 200;
  return text.size() <= n_max ? text : text.substr(0, n_max) + " ...";
}

/// The text of one JSON line; `where` is file:line.
std::string text_of(std::string_view line, const std::string& field, const std::string& where) {
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    throw DataError(fmt::format("{}: is not valid JSON (at byte {} of the line): {}", where,
                                error.byte, shortened(error.what())));
  }
  if (!value.is_object()) {
    throw DataError(fmt::format("{}: is {} and not an object with the field \"{}\"", where,
                                value.type_name(), field));
  }
  const auto found = value.find(field);
  if (found == value.end()) {
    std::string names;
    for (const auto& item : value.items()) names += (names.empty() ? "" : ", ") + item.key();
    throw DataError(fmt::format("{}: has no field \"{}\"; its fields: {}", where, field,
                                names.empty() ? "none" : shortened(names)));
  }
  if (!found->is_string()) {
    throw DataError(fmt::format("{}: the field \"{}\" is {} and not a string", where, field,
                                found->type_name()));
  }
  return std::move(found->get_ref<std::string&>());
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

TokenReader::TokenReader(Corpus corpus, const Tokenizer& tokenizer, std::int64_t vocab_size)
    : corpus_(std::move(corpus)), tokenizer_(tokenizer), vocab_size_(vocab_size) {
  if (!corpus_.is_tokens()) check_vocab_size(vocab_size, tokenizer);
}

bool TokenReader::next(std::vector<std::int32_t>& tokens) {
  if (!corpus_.is_tokens()) {
    if (!next_text(piece_)) return false;
    if (piece_.follows_document) tokens.push_back(tokenizer_.end_id());
    tokenizer_.encode(piece_.text, tokens);
    return true;
  }
  if (place_.file == static_cast<std::int64_t>(corpus_.files.size())) return false;
  open_current();
  read_tokens(tokens);
  return true;
}

bool TokenReader::next_text(TextPiece& piece) {
  CHECK_CONTRACT(!corpus_.is_tokens(), "token files have no text");
  piece.text.clear();
  piece.follows_document = false;
  if (place_.file == static_cast<std::int64_t>(corpus_.files.size())) return false;
  open_current();
  if (corpus_.files[static_cast<std::size_t>(place_.file)].kind == SourceKind::jsonl) {
    read_line(piece);
  } else {
    read_text(piece);
  }
  return true;
}

void TokenReader::seek(const Place& place) {
  CHECK_CONTRACT(place.file >= 0 && place.file <= static_cast<std::int64_t>(corpus_.files.size()),
                 "a place lies in the corpus");
  place_ = place;
  text_file_.reset();
  token_file_.reset();
  buffer_.clear();
  buffer_begin_ = 0;
  bytes_before_ = 0;
  for (std::int64_t i = 0; i < place.file; ++i) {
    bytes_before_ += corpus_.files[static_cast<std::size_t>(i)].n_bytes;
  }
}

void TokenReader::open_current() {
  if (text_file_ || token_file_) return;
  const SourceFile& source = corpus_.files[static_cast<std::size_t>(place_.file)];
  InputFile file(source.path);
  if (file.n_bytes() != source.n_bytes) {
    throw FileError(
        fmt::format("{}: has {} bytes, but had {} when the data was listed; start again",
                    source.path, file.n_bytes(), source.n_bytes));
  }
  if (source.kind == SourceKind::tokens) {
    token_file_ = std::make_unique<TokenFile>(source.path);
  } else {
    text_file_ = std::make_unique<InputFile>(std::move(file));
  }
}

void TokenReader::end_of_file() {
  bytes_before_ += corpus_.files[static_cast<std::size_t>(place_.file)].n_bytes;
  place_ = {.file = place_.file + 1,
            .byte = 0,
            .line = 1,
            .in_document = false,
            .after_document = place_.after_document || place_.in_document};
  text_file_.reset();
  token_file_.reset();
  buffer_.clear();
  buffer_begin_ = 0;
}

/// The bytes from place_.byte on, `n_bytes` of them or up to the end of the file.
std::string_view TokenReader::fill(std::size_t n_bytes) {
  const std::int64_t left = text_file_->n_bytes() - place_.byte;
  n_bytes = static_cast<std::size_t>(std::min(static_cast<std::int64_t>(n_bytes), left));
  const std::size_t n_there = buffer_.size() - buffer_begin_;
  if (n_there < n_bytes) {
    buffer_.erase(0, buffer_begin_);
    buffer_begin_ = 0;
    buffer_.resize(n_bytes);
    const std::span<char> missing = std::span(buffer_).subspan(n_there);
    text_file_->read_at(place_.byte + static_cast<std::int64_t>(n_there),
                        std::as_writable_bytes(missing));
  }
  return std::string_view(buffer_).substr(buffer_begin_, n_bytes);
}

void TokenReader::take_text(std::string_view text, TextPiece& piece) {
  if (text.empty()) return;
  piece.follows_document = !place_.in_document && place_.after_document;
  place_.in_document = true;
  piece.text = text;
}

void TokenReader::read_text(TextPiece& piece) {
  // What a piece holds depends on its place alone, so that a stream which goes on from a place cuts
  // the same pieces as one that has come to it.
  std::string_view text;
  std::size_t n = 0;
  for (std::size_t target = piece_bytes; n == 0; target *= 2) {
    text = fill(target);
    if (text.size() < target) {
      n = text.size();
      break;
    }
    n = tokenizer_.safe_prefix(text);
  }
  take_text(text.substr(0, n), piece);
  buffer_begin_ += n;
  place_.byte += static_cast<std::int64_t>(n);
  if (place_.byte == text_file_->n_bytes()) end_of_file();
}

void TokenReader::read_line(TextPiece& piece) {
  std::string_view text;
  std::size_t end = std::string_view::npos;
  std::size_t n_searched = 0;
  for (std::size_t target = piece_bytes; end == std::string_view::npos; target *= 2) {
    const std::size_t n_there = buffer_.size() - buffer_begin_;
    if (n_there > 0) end = std::string_view(buffer_).find('\n', buffer_begin_ + n_searched);
    if (end != std::string_view::npos) {
      end -= buffer_begin_;
      text = std::string_view(buffer_).substr(buffer_begin_);
      break;
    }
    n_searched = n_there;
    text = fill(std::max(target, n_there + 1));
    if (text.size() == n_there) end = text.size();  // the last line ends with the file
  }
  const std::string_view line = text.substr(0, end);
  if (!is_blank(line)) {
    const SourceFile& source = corpus_.files[static_cast<std::size_t>(place_.file)];
    const std::string where = fmt::format("{}:{}", source.path, place_.line);
    take_text(text_of(line, corpus_.text_field, where), piece);
  }
  const std::size_t n = std::min(end + 1, text.size());
  buffer_begin_ += n;
  place_.byte += static_cast<std::int64_t>(n);
  ++place_.line;
  place_.after_document = place_.after_document || place_.in_document;
  place_.in_document = false;
  if (place_.byte == text_file_->n_bytes()) end_of_file();
}

void TokenReader::read_tokens(std::vector<std::int32_t>& tokens) {
  const std::int64_t n = std::min(piece_tokens, token_file_->n_tokens() - place_.byte);
  const std::size_t n_before = tokens.size();
  tokens.resize(n_before + static_cast<std::size_t>(n));
  std::int32_t* out = tokens.data() + n_before;
  token_file_->read(place_.byte, n, out);
  check_ids(token_file_->path(), place_.byte, vocab_size_, out, n);
  place_.byte += n;
  if (place_.byte == token_file_->n_tokens()) end_of_file();
}

}  // namespace llm
