#include "src/data/token_cache.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/data/token_file.h"
#include "src/data/token_reader.h"
#include "src/data/token_writer.h"

namespace llm {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t format_version = 1;  // of the cache folder; another one is rebuilt
constexpr std::int64_t checked_bytes_max = std::int64_t{1} << 30;  // about half a second to read
constexpr std::int64_t progress_bytes = 4 << 20;

std::string absolute(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

/// Which cache belongs to a corpus: edited files keep it.
std::uint64_t folder_key(const Corpus& corpus, const Tokenizer& tokenizer) {
  std::uint64_t key = mix_key(format_version, corpus.text_field);
  for (const std::string& pattern : corpus.patterns) key = mix_key(key, absolute(pattern));
  return corpus.is_tokens() ? key : mix_key(key, tokenizer.name());
}

/// What a cache was built from: edited files change it.
std::uint64_t fingerprint(const Corpus& corpus) {
  std::uint64_t key = mix_key(format_version, static_cast<std::uint64_t>(corpus.files.size()));
  for (const SourceFile& file : corpus.files) {
    key = mix_key(key, absolute(file.path));
    key = mix_key(key, static_cast<std::uint64_t>(file.n_bytes));
    key = mix_key(key, static_cast<std::uint64_t>(file.modified_ns));
  }
  return key;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FileError(fmt::format("{}: cannot be made: {}", path, error.message()));
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw FileError(fmt::format("{}: cannot be renamed to {}: {}", from, to, error.message()));
  }
}

void remove_path(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw FileError(fmt::format("{}: cannot be removed: {}", path, error.message()));
}

/// A name beside `path` that says which process uses it.
std::string beside(const std::string& path, const char* what) {
  return fmt::format("{}.{}-{}", path, what, ::getpid());
}

/// Removes what a killed process of this machine left beside `path`.
void remove_leftovers(const std::string& path) {
  const std::string prefix = fs::path(path).filename().string() + ".";
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path())) {
    const std::string name = entry.path().filename().string();
    const std::size_t dash = name.rfind('-');
    if (!name.starts_with(prefix) || dash < prefix.size()) continue;
    int process = 0;
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + dash + 1, end, process);
    if (error != std::errc() || rest != end || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) remove_path(entry.path().string());
  }
}

struct CacheFile {
  std::string name;
  std::int64_t n_tokens = 0;
  std::uint64_t checksum = 0;
};

/// What `folder`/cache.json says, or throws what a caller takes for "no cache".
struct CacheIndex {
  std::uint64_t fingerprint = 0;
  std::vector<CacheFile> files;
};

std::string to_json(const CacheIndex& index) {
  Json files = Json::array();
  for (const CacheFile& file : index.files) {
    files.push_back(
        {{"name", file.name}, {"n_tokens", file.n_tokens}, {"checksum", file.checksum}});
  }
  return Json{{"fingerprint", index.fingerprint}, {"files", files}}.dump(1) + "\n";
}

CacheIndex read_index(const std::string& folder) {
  const Json value = Json::parse(read_file(folder + "/cache.json"));
  CacheIndex index{.fingerprint = value.at("fingerprint"), .files = {}};
  for (const Json& file : value.at("files")) {
    index.files.push_back({.name = file.at("name"),
                           .n_tokens = file.at("n_tokens"),
                           .checksum = file.at("checksum")});
  }
  return index;
}

TokenSet set_of(const std::string& folder, const CacheIndex& index) {
  TokenSet set;
  for (const CacheFile& file : index.files) {
    set.paths.push_back(folder + "/" + file.name);
    set.n_file_tokens.push_back(file.n_tokens);
    set.n_tokens += file.n_tokens;
  }
  return set;
}

bool is_whole(const std::string& folder, const CacheIndex& index) {
  std::int64_t n_checked_bytes = 0;
  for (const CacheFile& file : index.files) {
    const std::string path = folder + "/" + file.name;
    if (TokenFile(path).n_tokens() != file.n_tokens) return false;
    n_checked_bytes += static_cast<std::int64_t>(fs::file_size(path));
    if (n_checked_bytes <= checked_bytes_max && checksum_tokens(path) != file.checksum)
      return false;
  }
  return !index.files.empty();
}

/// The cache in `folder`, or an empty set when it is missing, stale or damaged: whatever is wrong
/// with it, building it again is right, and building reports what cannot be read or written.
TokenSet find_cache(const std::string& folder, std::uint64_t wanted) {
  try {
    if (!fs::exists(folder)) return {};
    const CacheIndex index = read_index(folder);
    if (index.fingerprint == wanted && is_whole(folder, index)) return set_of(folder, index);
  } catch (const Error&) {
  } catch (const Json::exception&) {
  } catch (const fs::filesystem_error&) {
  }
  return {};
}

CacheIndex write_cache(const std::string& folder, const Corpus& corpus, const Tokenizer& tokenizer,
                       const CacheConfig& config) {
  CacheIndex index{.fingerprint = fingerprint(corpus), .files = {}};
  std::unique_ptr<TokenWriter> writer;
  const auto finish_file = [&] {
    index.files.back().n_tokens = writer->n_tokens();
    index.files.back().checksum = writer->finish();
    writer.reset();
  };
  TokenReader reader(corpus, tokenizer, config.vocab_size);
  std::vector<std::int32_t> tokens;
  std::int64_t n_reported = 0;
  while (reader.next(tokens)) {
    for (std::size_t begin = 0; begin < tokens.size();) {
      if (!writer) {
        index.files.push_back({.name = fmt::format("tokens-{:05}.bin", index.files.size())});
        writer = std::make_unique<TokenWriter>(TokenWriter::Config{
            .path = folder + "/" + index.files.back().name, .n_ids = tokenizer.n_ids()});
      }
      const std::int64_t n = std::min(static_cast<std::int64_t>(tokens.size() - begin),
                                      config.max_file_tokens - writer->n_tokens());
      writer->write(tokens.data() + begin, n);
      begin += static_cast<std::size_t>(n);
      if (writer->n_tokens() == config.max_file_tokens) finish_file();
    }
    tokens.clear();
    if (config.on_progress && reader.n_bytes_done() - n_reported >= progress_bytes) {
      n_reported = reader.n_bytes_done();
      config.on_progress(n_reported, corpus.n_bytes());
    }
  }
  if (writer) finish_file();
  if (index.files.empty()) {
    throw DataError(fmt::format("the data has no text: {} files, {} bytes, the first is {}",
                                corpus.files.size(), corpus.n_bytes(), corpus.files.front().path));
  }
  write_file_atomically(folder + "/cache.json", to_json(index));
  return index;
}

/// Puts the finished folder `from` at `to`, which may hold an older cache or one that another run
/// puts there at this moment; whoever comes last stays, and those of one moment are alike.
void put_in_place(const std::string& from, const std::string& to) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (fs::exists(to)) {
      const std::string old = beside(to, "old");
      std::error_code moved_by_another_run;
      fs::rename(to, old, moved_by_another_run);
      if (!moved_by_another_run) remove_path(old);
    }
    std::error_code taken_again;
    fs::rename(from, to, taken_again);
    if (!taken_again) return;
    if (!fs::exists(to)) break;
  }
  rename_path(from, to);
}

TokenSet cache_text(const Corpus& corpus, const Tokenizer& tokenizer, const CacheConfig& config) {
  const std::string folder =
      absolute(fmt::format("{}/tokens-{:016x}", config.folder, folder_key(corpus, tokenizer)));
  TokenSet set = find_cache(folder, fingerprint(corpus));
  if (!set.paths.empty()) return set;
  make_folder(config.folder);
  remove_leftovers(folder);
  const std::string unfinished = beside(folder, "tmp");
  remove_path(unfinished);
  make_folder(unfinished);
  const CacheIndex index = write_cache(unfinished, corpus, tokenizer, config);
  sync_folder(unfinished);
  set = find_cache(folder, index.fingerprint);
  if (!set.paths.empty()) {  // another run was faster, and may be reading it
    remove_path(unfinished);
    return set;
  }
  put_in_place(unfinished, folder);
  sync_folder(config.folder);
  set = set_of(folder, index);
  set.built = true;
  return set;
}

/// The largest id of an earlier check of the same files, or -1.
std::int64_t remembered_max_id(const std::string& path, std::uint64_t wanted) {
  if (!fs::exists(path)) return -1;
  try {
    const Json value = Json::parse(read_file(path));
    if (value.at("fingerprint") == wanted) return value.at("max_id");
  } catch (const Json::exception&) {  // damaged: check again
  }
  return -1;
}

TokenSet check_token_files(const Corpus& corpus, const Tokenizer& tokenizer,
                           const CacheConfig& config) {
  TokenSet set;
  for (const SourceFile& source : corpus.files) {
    set.paths.push_back(source.path);
    set.n_file_tokens.push_back(TokenFile(source.path).n_tokens());
    set.n_tokens += set.n_file_tokens.back();
  }
  const std::string memory =
      fmt::format("{}/checked-{:016x}.json", config.folder, folder_key(corpus, tokenizer));
  const std::int64_t known = remembered_max_id(memory, fingerprint(corpus));
  if (known >= 0 && known < config.vocab_size) return set;
  TokenReader reader(corpus, tokenizer, config.vocab_size);
  std::vector<std::int32_t> tokens;
  std::int64_t max_id = 0;
  std::int64_t n_reported = 0;
  while (reader.next(tokens)) {
    for (const std::int32_t id : tokens) max_id = std::max<std::int64_t>(max_id, id);
    tokens.clear();
    if (config.on_progress && reader.n_bytes_done() - n_reported >= progress_bytes) {
      n_reported = reader.n_bytes_done();
      config.on_progress(n_reported, corpus.n_bytes());
    }
  }
  make_folder(config.folder);
  write_file_atomically(
      memory, Json{{"fingerprint", fingerprint(corpus)}, {"max_id", max_id}}.dump() + "\n");
  set.built = true;
  return set;
}

}  // namespace

std::string to_json(const TokenSet& set) {
  return Json{{"paths", set.paths},
              {"n_file_tokens", set.n_file_tokens},
              {"n_tokens", set.n_tokens},
              {"data_key", set.data_key},
              {"built", set.built}}
      .dump();
}

TokenSet token_set_from_json(const std::string& json) {
  const Json value = Json::parse(json);
  return {.paths = value.at("paths"),
          .n_file_tokens = value.at("n_file_tokens"),
          .n_tokens = value.at("n_tokens"),
          .data_key = value.at("data_key"),
          .built = value.at("built")};
}

TokenSet build_cache(const Corpus& corpus, const Tokenizer& tokenizer, const CacheConfig& config) {
  if (!corpus.is_tokens()) check_vocab_size(config.vocab_size, tokenizer);
  TokenSet set = corpus.is_tokens() ? check_token_files(corpus, tokenizer, config)
                                    : cache_text(corpus, tokenizer, config);
  set.data_key = corpus_key(corpus, tokenizer.name());
  return set;
}

}  // namespace llm
