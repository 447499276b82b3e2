#include "src/data/token_cache.h"

#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "src/data/token_samples.h"
#include "tests/data/files.h"

namespace llm::test {

namespace {

TokenSet build(const std::vector<std::string>& patterns, const std::string& folder,
               std::int64_t vocab_size = 256) {
  return build_cache(corpus_of(patterns), ByteTokenizer(),
                     {.folder = folder, .vocab_size = vocab_size, .on_progress = {}});
}

std::string text_of_set(const TokenSet& set) {
  TokenStore store(set, 256);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(store.n_tokens()));
  store.read(0, store.n_tokens(), ids.data());
  return text_of(ids);
}

std::size_t n_entries(const std::string& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(
      std::distance(std::filesystem::begin(entries), std::filesystem::end(entries)));
}

}  // namespace

TEST_CASE("text is tokenized once and found afterwards") {
  const TempFolder folder;
  folder.write("a.txt", "alpha");
  folder.write("b.jsonl", "{\"text\": \"beta\"}");
  const std::vector<std::string> patterns{folder / "*.{txt,jsonl}"};
  const TokenSet first = build(patterns, folder / "cache/deep");
  CHECK(first.built);
  CHECK(first.n_tokens == 10);
  CHECK(text_of_set(first) == std::string("alpha\0beta", 10));
  const TokenSet second = build(patterns, folder / "cache/deep");
  CHECK_FALSE(second.built);
  CHECK(second.paths == first.paths);
  CHECK(second.data_key == first.data_key);
  CHECK(n_entries(folder / "cache/deep") == 1);
}

TEST_CASE("a changed, added or touched source replaces the cache") {
  const TempFolder folder;
  folder.write("a.txt", "alpha");
  const std::vector<std::string> patterns{folder / "*.txt"};
  build(patterns, folder / "cache");
  folder.write("a.txt", "ALPHA");  // the same size: the time tells
  std::filesystem::last_write_time(
      folder / "a.txt", std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  CHECK(text_of_set(build(patterns, folder / "cache")) == "ALPHA");
  folder.write("b.txt", "beta");
  const TokenSet set = build(patterns, folder / "cache");
  CHECK(set.built);
  CHECK(text_of_set(set) == std::string("ALPHA\0beta", 10));
  CHECK(n_entries(folder / "cache") == 1);
}

TEST_CASE("a damaged cache is built again") {
  const TempFolder folder;
  const std::string text(5000, 'x');
  const std::vector<std::string> patterns{folder.write("a.txt", text)};
  const TokenSet set = build(patterns, folder / "cache");
  const std::filesystem::path file = set.paths.front();
  const std::filesystem::path index = file.parent_path() / "cache.json";
  const auto overwrite = [](const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  };
  const std::vector<std::function<void()>> damages{
      [&] { std::filesystem::resize_file(file, 3000); },
      [&] { std::filesystem::resize_file(file, 1024 + 4998 * 2); },
      [&] { std::filesystem::remove(file); },
      [&] { std::filesystem::remove(index); },
      [&] { overwrite(index, "{\"fingerprint\": "); },
      [&] { overwrite(index, "[1, 2]"); },
      [&] { overwrite(index, ""); },
      [&] { overwrite(file, std::string(1024 + 10000, 'y')); },
      [&] {
        std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekp(1024 + 5000).put('y');
      },
      [&] {
        std::filesystem::remove_all(file.parent_path());
        overwrite(file.parent_path(), "a file where the folder was");
      },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    damages[i]();
    const TokenSet again = build(patterns, folder / "cache");
    INFO("damage " << i);
    CHECK(again.built);
    CHECK(text_of_set(again) == text);
    CHECK_FALSE(build(patterns, folder / "cache").built);
  }
}

TEST_CASE("a cache of several files reads as one stream") {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  const Corpus corpus = corpus_of({folder.write("a.txt", text)});
  for (const std::int64_t max_tokens : {1000, 999, 500, 333, 100}) {
    const TokenSet set = build_cache(corpus, ByteTokenizer(),
                                     {.folder = folder / std::to_string(max_tokens),
                                      .vocab_size = 256,
                                      .max_file_tokens = max_tokens,
                                      .on_progress = {}});
    CHECK(static_cast<std::int64_t>(set.paths.size()) == (1000 + max_tokens - 1) / max_tokens);
    CHECK(text_of_set(set) == text);
    TokenStore store(set, 256);
    for (std::int64_t begin = 0; begin + 250 <= 1000; begin += 7) {
      std::vector<std::int32_t> ids(250);
      store.read(begin, 250, ids.data());
      CHECK(text_of(ids) == text.substr(static_cast<std::size_t>(begin), 250));
    }
  }
}

TEST_CASE("more files than may be open at once are read") {
  const TempFolder folder;
  for (int i = 0; i < 300; ++i) {
    folder.write("f" + std::to_string(1000 + i) + ".bin",
                 bytes_of(std::vector<std::uint16_t>{static_cast<std::uint16_t>(i)}));
  }
  const TokenSet set = build({folder / "*.bin"}, folder / "cache", 300);
  TokenStore store(set, 300);
  for (std::int64_t i = 299; i >= 0; --i) {
    std::int32_t id = -1;
    store.read(i, 1, &id);
    CHECK(id == i);
  }
}

TEST_CASE("what a killed build left is removed and what a living one writes is kept") {
  const TempFolder folder;
  const std::vector<std::string> patterns{folder.write("a.txt", "alpha")};
  const TokenSet set = build(patterns, folder / "cache");
  const std::string cache = std::filesystem::path(set.paths.front()).parent_path().string();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::string dead = cache + ".tmp-" + std::to_string(child);
  const std::string alive = cache + ".tmp-" + std::to_string(::getppid());
  std::filesystem::create_directories(dead);
  std::filesystem::create_directories(alive);
  std::filesystem::remove_all(cache);
  build(patterns, folder / "cache");
  CHECK_FALSE(std::filesystem::exists(dead));
  CHECK(std::filesystem::exists(alive));
}

TEST_CASE("builds at the same moment all end with the whole cache") {
  const TempFolder folder;
  const std::string text(300'000, 'z');
  const std::vector<std::string> patterns{folder.write("a.txt", text)};
  for (int round = 0; round < 5; ++round) {
    std::filesystem::remove_all(folder / "cache");
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i) {
      children.push_back(::fork());
      if (children.back() == 0) {
        const std::string failure = message_of<Error>([&] { build(patterns, folder / "cache"); });
        ::_exit(failure == "nothing thrown" ? 0 : 1);
      }
    }
    for (const pid_t child : children) {
      int status = -1;
      ::waitpid(child, &status, 0);
      CHECK(status == 0);
    }
    const TokenSet set = build(patterns, folder / "cache");
    CHECK_FALSE(set.built);
    CHECK(text_of_set(set) == text);
    CHECK(n_entries(folder / "cache") == 1);
  }
}

TEST_CASE("token files are checked, remembered and not copied") {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", bytes_of(counting(1000)));
  const TokenSet first = build({path}, folder / "cache", 1000);
  CHECK(first.built);
  CHECK(first.paths == std::vector<std::string>{path});
  CHECK(first.n_tokens == 1000);
  CHECK_FALSE(build({path}, folder / "cache", 1000).built);
  CHECK(has(message_of<DataError>([&] { build({path}, folder / "cache", 999); }),
            path + ": token 999 has id 999, but model.vocab_size is 999"));
  folder.write("a.bin", bytes_of(counting(2000)));
  CHECK(has(message_of<DataError>([&] { build({path}, folder / "cache", 1000); }),
            path + ": token 1000 has id 1000, but model.vocab_size is 1000"));
}

TEST_CASE("a two-byte token file serves a vocabulary that it could not hold") {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", bytes_of(counting(70'000)));
  CHECK(build({path}, folder / "cache", 70'000).n_tokens == 70'000);
}

TEST_CASE("data without text, a small vocabulary and an impossible folder are refused") {
  const TempFolder folder;
  const std::string empty = folder.write("empty.txt", "");
  CHECK(has(message_of<DataError>([&] { build({empty}, folder / "cache"); }),
            "the data has no text: 1 files, 0 bytes, the first is " + empty));
  const std::string path = folder.write("a.txt", "alpha");
  CHECK(has(message_of<ConfigError>([&] { build({path}, folder / "cache", 255); }),
            "model.vocab_size: 255"));
  CHECK(has(message_of<FileError>([&] { build({path}, path + "/cache"); }), "cannot be made"));
}

TEST_CASE("progress counts up to the size of the text") {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", std::string(10 << 20, 'x'));
  std::vector<std::int64_t> reports;
  build_cache(corpus_of({path}), ByteTokenizer(),
              {.folder = folder / "cache",
               .vocab_size = 256,
               .on_progress = [&](std::int64_t n_done, std::int64_t n_bytes) {
                 CHECK(n_bytes == 10 << 20);
                 reports.push_back(n_done);
               }});
  CHECK(reports == std::vector<std::int64_t>{4 << 20, 8 << 20});
}

TEST_CASE("a token set survives its way to other ranks, who notice other files") {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", bytes_of(counting(10)));
  const TokenSet set = build({path}, folder / "cache");
  const TokenSet copy = token_set_from_json(to_json(set));
  CHECK(to_json(copy) == to_json(set));
  CHECK(copy.data_key == set.data_key);
  folder.write("a.bin", bytes_of(counting(11)));
  CHECK(has(message_of<DataError>([&] { TokenStore(copy, 256); }),
            path + ": has 11 tokens, but had 10 when it was checked"));
}

}  // namespace llm::test
