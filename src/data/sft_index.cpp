#include "src/data/sft_index.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/philox.h"

namespace llm {
namespace {

constexpr std::int64_t read_bytes = 1 << 20;
// Far below the usual limit of 1,024 descriptors, which MPI's sockets share.
constexpr std::int64_t max_open_files = 128;

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

InputFile open_unchanged(const SourceFile& source) {
  InputFile file(source.path);
  if (file.n_bytes() != source.n_bytes) {
    throw FileError(
        fmt::format("{}: has {} bytes, but had {} when the data was listed; start again",
                    source.path, file.n_bytes(), source.n_bytes));
  }
  return file;
}

/// Calls `take(line, byte, number)` for each line of a file; lines have no newline.
template <typename Take>
void for_lines(const InputFile& file, const Take& take) {
  std::string buffer;
  std::int64_t buffer_begin = 0;  // its place in the file
  std::int64_t number = 0;
  while (true) {
    const std::int64_t n_done = buffer_begin + static_cast<std::int64_t>(buffer.size());
    const std::int64_t n = std::min(read_bytes, file.n_bytes() - n_done);
    const std::size_t n_searched = buffer.size();
    buffer.resize(n_searched + static_cast<std::size_t>(n));
    file.read(n_done, n, buffer.data() + n_searched);
    std::size_t begin = 0;
    for (std::size_t end = buffer.find('\n', n_searched); end != std::string::npos;
         end = buffer.find('\n', begin)) {
      take(std::string_view(buffer).substr(begin, end - begin),
           buffer_begin + static_cast<std::int64_t>(begin), ++number);
      begin = end + 1;
    }
    if (n_done + n == file.n_bytes()) {
      const std::string_view rest = std::string_view(buffer).substr(begin);
      if (!rest.empty()) take(rest, buffer_begin + static_cast<std::int64_t>(begin), ++number);
      return;
    }
    buffer.erase(0, begin);
    buffer_begin += static_cast<std::int64_t>(begin);
  }
}

/// Cuts an example to T + 1 tokens.
void truncate(SftTokens& example, std::int64_t seq_len) {
  const auto n = static_cast<std::size_t>(seq_len + 1);
  if (example.tokens.size() <= n) return;
  example.tokens.resize(n);
  example.is_answer.resize(n);
}

void add_example(SftIndex& index, std::string_view line, const std::string& where, SftPlace place,
                 const Tokenizer& tokenizer) {
  SftTokens example = encode(read_sft_example(line, where), tokenizer);
  if (count_labels(example, index.seq_len) == 0) {
    ++index.n_skipped;
    return;
  }
  if (static_cast<std::int64_t>(example.tokens.size()) > index.seq_len + 1) ++index.n_truncated;
  truncate(example, index.seq_len);
  place.n_tokens = static_cast<std::int32_t>(example.tokens.size());
  index.examples.push_back(place);
}

}  // namespace

SftIndex index_examples(const Corpus& corpus, const Tokenizer& tokenizer,
                        const SftIndexConfig& config) {
  CHECK_CONTRACT(config.seq_len >= 1, "a sample has tokens");
  SftIndex index;
  index.corpus = corpus;
  index.seq_len = config.seq_len;
  for (const SourceFile& source : corpus.files) {
    if (source.kind == SourceKind::jsonl) continue;
    throw DataError(fmt::format(
        "{}: {} is not .jsonl; --task sft reads lines of JSON with instruction and output, or with "
        "messages",
        config.field, source.path));
  }
  std::int64_t n_before = 0;
  for (std::size_t i = 0; i < corpus.files.size(); ++i) {
    const SourceFile& source = corpus.files[i];
    for_lines(
        open_unchanged(source), [&](std::string_view line, std::int64_t byte, std::int64_t number) {
          if (is_blank_line(line)) return;
          const SftPlace place{.byte = byte,
                               .n_bytes = static_cast<std::int64_t>(line.size()),
                               .file = static_cast<std::int32_t>(i),
                               .n_tokens = 0};
          add_example(index, line, fmt::format("{}:{}", source.path, number), place, tokenizer);
          if (config.on_progress) config.on_progress(n_before + byte, corpus.n_bytes());
        });
    n_before += source.n_bytes;
  }
  if (index.examples.empty()) {
    throw DataError(fmt::format(
        "{}: none of {} examples has an answer within data.max_seq_len {}; the first file is {}",
        config.field, index.n_skipped, config.seq_len, corpus.files.front().path));
  }
  return index;
}

std::string to_bytes(const SftIndex& index) {
  static_assert(std::is_trivially_copyable_v<SftPlace> && sizeof(SftPlace) == 24);
  std::string bytes = nlohmann::json{{"corpus", to_json(index.corpus)},
                                     {"seq_len", index.seq_len},
                                     {"n_examples", index.examples.size()},
                                     {"n_skipped", index.n_skipped},
                                     {"n_truncated", index.n_truncated}}
                          .dump() +
                      "\n";
  const std::size_t n_places = index.examples.size() * sizeof(SftPlace);
  const std::size_t begin = bytes.size();
  bytes.resize(begin + n_places);
  if (n_places > 0) std::memcpy(bytes.data() + begin, index.examples.data(), n_places);
  return bytes;
}

SftIndex sft_index_from_bytes(const std::string& bytes) {
  const std::size_t end = bytes.find('\n');
  const auto value = nlohmann::json::parse(bytes.substr(0, end));
  SftIndex index{.corpus = corpus_from_json(value.at("corpus").get<std::string>()),
                 .seq_len = value.at("seq_len"),
                 .examples = std::vector<SftPlace>(value.at("n_examples").get<std::size_t>()),
                 .n_skipped = value.at("n_skipped"),
                 .n_truncated = value.at("n_truncated")};
  const std::size_t n_places = index.examples.size() * sizeof(SftPlace);
  CHECK_CONTRACT(bytes.size() == end + 1 + n_places, "an index arrives whole");
  if (n_places > 0) std::memcpy(index.examples.data(), bytes.data() + end + 1, n_places);
  return index;
}

SftReader::SftReader(SftIndex index, const Tokenizer& tokenizer)
    : index_(std::move(index)),
      tokenizer_(tokenizer),
      data_key_(mix_key(corpus_key(index_.corpus, tokenizer.name()), sft_template)),
      open_files_(index_.corpus.files.size()) {}

const InputFile& SftReader::file(std::int32_t index) {
  std::unique_ptr<InputFile>& slot = open_files_[static_cast<std::size_t>(index)];
  if (slot) return *slot;
  if (n_open_ == max_open_files) {
    for (auto& other : open_files_) other.reset();
    n_open_ = 0;
  }
  slot = std::make_unique<InputFile>(
      open_unchanged(index_.corpus.files[static_cast<std::size_t>(index)]));
  ++n_open_;
  return *slot;
}

SftTokens SftReader::read(std::int64_t example) {
  const SftPlace& place = index_.examples[static_cast<std::size_t>(example)];
  const InputFile& source = file(place.file);
  std::string line(static_cast<std::size_t>(place.n_bytes), '\0');
  source.read(place.byte, place.n_bytes, line.data());
  const std::string where =
      fmt::format("{}: the line at byte {}", source.path().string(), place.byte);
  SftTokens tokens = encode(read_sft_example(line, where), tokenizer_);
  truncate(tokens, index_.seq_len);
  if (static_cast<std::int64_t>(tokens.tokens.size()) != place.n_tokens) {
    throw DataError(fmt::format("{}: gives {} tokens, but gave {} at the start; start again", where,
                                tokens.tokens.size(), place.n_tokens));
  }
  return tokens;
}

}  // namespace llm
