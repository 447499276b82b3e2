#pragma once
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "src/data/corpus.h"
#include "src/data/tokenizer.h"

namespace llm::test {

/// A folder of its own below the system's temporary one; removed with everything in it.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> n_made = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("data_test-" + std::to_string(::getpid()) + "-" + std::to_string(n_made++));
    std::filesystem::create_directories(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file, with the folders above it; returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

 private:
  std::filesystem::path path_;
};

/// The bytes of `values` as they lie in memory.
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// An llm.c token file: the header says `n_tokens`, whatever follows.
template <typename T>
std::string llmc_bytes(std::int32_t magic, std::int32_t version, std::int32_t n_tokens,
                       const std::vector<T>& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = n_tokens;
  return bytes_of(header) + bytes_of(tokens);
}

/// 0, 1, 2, ... modulo `n_ids`: token t is its own place, so a sample shows which one it is.
inline std::vector<std::uint16_t> counting(std::int64_t n, std::int64_t n_ids = 65536) {
  std::vector<std::uint16_t> tokens;
  for (std::int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<std::uint16_t>(i % n_ids));
  return tokens;
}

inline Corpus corpus_of(const std::vector<std::string>& patterns) {
  return find_corpus({.patterns = patterns});
}

inline std::string text_of(const std::vector<std::int32_t>& ids) {
  std::string text;
  ByteTokenizer().decode(ids, text);
  return text;
}

/// The message of the E that `action` throws; "nothing thrown" otherwise.
template <typename E, typename F>
std::string message_of(F action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing thrown";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace llm::test
