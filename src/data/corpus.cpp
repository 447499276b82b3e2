#include "src/data/corpus.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/data/glob.h"

namespace llm {
namespace {

SourceKind kind_of(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".jsonl") return SourceKind::jsonl;
  if (extension == ".bin") return SourceKind::tokens;
  return SourceKind::text;
}

SourceFile look_at(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    const int error = errno;
    throw FileError(fmt::format("{}: cannot read: {}", path, std::strerror(error)));
  }
  return {
      .path = path,
      .kind = kind_of(path),
      .n_bytes = status.st_size,
      .modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

}  // namespace

std::int64_t Corpus::n_bytes() const {
  std::int64_t sum = 0;
  for (const SourceFile& file : files) sum += file.n_bytes;
  return sum;
}

Corpus find_corpus(const CorpusConfig& config) {
  if (config.patterns.empty()) throw DataError(config.field + ": names no file");
  Corpus corpus{.patterns = config.patterns, .text_field = config.text_field, .files = {}};
  for (const std::string& path : expand_patterns(config.patterns, config.field)) {
    corpus.files.push_back(look_at(path));
  }
  for (const SourceFile& file : corpus.files) {
    if ((file.kind == SourceKind::tokens) != corpus.is_tokens()) {
      throw DataError(fmt::format(
          "{}: {} and {} mix token files (.bin) with text; tokens of different tokenizers do not "
          "go together, name only one kind",
          config.field, corpus.files.front().path, file.path));
    }
  }
  return corpus;
}

std::uint64_t corpus_key(const Corpus& corpus, const std::string& tokenizer) {
  std::uint64_t key = mix_key(0, corpus.is_tokens() ? "" : tokenizer + "\n" + corpus.text_field);
  for (const SourceFile& file : corpus.files) {
    key = mix_key(key, std::filesystem::path(file.path).filename().string());
    key = mix_key(key, static_cast<std::uint64_t>(file.n_bytes));
  }
  return key;
}

std::string to_json(const Corpus& corpus) {
  nlohmann::json files = nlohmann::json::array();
  for (const SourceFile& file : corpus.files) {
    files.push_back({file.path, static_cast<int>(file.kind), file.n_bytes, file.modified_ns});
  }
  return nlohmann::json{
      {"patterns", corpus.patterns}, {"text_field", corpus.text_field}, {"files", files}}
      .dump();
}

Corpus corpus_from_json(const std::string& json) {
  const auto value = nlohmann::json::parse(json);
  Corpus corpus{
      .patterns = value.at("patterns"), .text_field = value.at("text_field"), .files = {}};
  for (const auto& file : value.at("files")) {
    corpus.files.push_back({.path = file.at(0),
                            .kind = static_cast<SourceKind>(file.at(1).get<int>()),
                            .n_bytes = file.at(2),
                            .modified_ns = file.at(3)});
  }
  return corpus;
}

}  // namespace llm
