#include "src/data/token_file.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "src/data/token_writer.h"
#include "tests/data/files.h"

namespace llm::test {

namespace {

std::vector<std::int32_t> all_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.n_tokens()));
  file.read(0, file.n_tokens(), ids.data());
  return ids;
}

std::string refusal(const TempFolder& folder, const std::string& bytes) {
  const std::string path = folder.write("bad.bin", bytes);
  const std::string message = message_of<DataError>([&] { TokenFile{path}; });
  CHECK(has(message, path + ": "));
  return message;
}

using Ids = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("token files of llm.c and nanoGPT give their tokens") {
  const TempFolder folder;
  const std::vector<std::uint16_t> narrow{1, 65535, 0, 50256};
  const std::vector<std::uint32_t> wide{1, 70000, 0};
  CHECK(all_of(TokenFile(folder.write("a.bin", llmc_bytes(20240520, 1, 4, narrow)))) ==
        Ids{1, 65535, 0, 50256});
  CHECK(all_of(TokenFile(folder.write("b.bin", llmc_bytes(20240801, 7, 3, wide)))) ==
        Ids{1, 70000, 0});
  CHECK(all_of(TokenFile(folder.write("c.bin", bytes_of(narrow)))) == Ids{1, 65535, 0, 50256});
  CHECK(all_of(TokenFile(folder.write("d.bin", std::string("\x05\x00", 2)))) == Ids{5});
}

TEST_CASE("any part of a token file can be read") {
  const TempFolder folder;
  const TokenFile file(folder.write("a.bin", llmc_bytes(20240520, 1, 9, counting(9))));
  for (std::int64_t begin = 0; begin <= 9; ++begin) {
    for (std::int64_t n = 0; begin + n <= 9; ++n) {
      Ids ids(static_cast<std::size_t>(n));
      file.read(begin, n, ids.data());
      for (std::int64_t i = 0; i < n; ++i) CHECK(ids[static_cast<std::size_t>(i)] == begin + i);
    }
  }
}

TEST_CASE("a malformed token file is refused by name with what is wrong") {
  const TempFolder folder;
  const auto tokens = counting(4);
  CHECK(has(refusal(folder, ""), "is empty"));
  CHECK(has(refusal(folder, "abc"), "has 3 bytes, an odd number"));
  CHECK(has(refusal(folder, "a"), "has 1 bytes, an odd number"));
  CHECK(has(refusal(folder, bytes_of(std::vector<std::int32_t>{20240520, 1, 4})),
            "has 12 bytes, but llm.c's header alone has 1024"));
  CHECK(has(refusal(folder, llmc_bytes(20240520, 2, 4, tokens)),
            "has version 2 of llm.c's token format with magic 20240520; expected 1"));
  CHECK(has(refusal(folder, llmc_bytes(20240801, 1, 4, tokens)), "expected 7"));
  CHECK(has(refusal(folder, llmc_bytes(20240520, 1, 5, tokens)),
            "has 1032 bytes, but its header says 5 tokens of 2 bytes: 1034 bytes"));
  CHECK(has(refusal(folder, llmc_bytes(20240520, 1, 3, tokens)), "says 3 tokens"));
  CHECK(has(refusal(folder, llmc_bytes(20240520, 1, -1, tokens)), "says -1 tokens"));
  CHECK(has(refusal(folder, llmc_bytes(20240520, 1, 0, std::vector<std::uint16_t>{})), "says 0"));
  CHECK(has(refusal(folder, llmc_bytes(20240522, 1, 4, tokens)),
            "is evaluation data of llm.c (magic 20240522), not training tokens"));
  CHECK(has(refusal(folder, llmc_bytes(20240326, 3, 4, tokens)), "is a model of llm.c"));
}

TEST_CASE("a file that shrinks after it was opened is an error with its name") {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", bytes_of(counting(100)));
  const TokenFile file(path);
  std::filesystem::resize_file(path, 100);
  Ids ids(100);
  file.read(0, 50, ids.data());
  const auto read = [&] { file.read(0, 100, ids.data()); };
  CHECK(has(message_of<FileError>(read), path + " ends 100 bytes early, at byte 100"));
}

TEST_CASE("a missing file and a folder are refused with the system's reason") {
  const TempFolder folder;
  CHECK(has(message_of<FileError>([&] { TokenFile{folder / "none.bin"}; }),
            (folder / "none.bin") + ": No such file or directory"));
  CHECK(has(message_of<FileError>([&] { TokenFile{folder / ""}; }), "is not a regular file"));
}

TEST_CASE("an id that the model does not have is refused with file, place, id and vocab_size") {
  const Ids ids{0, 1, 255, 256, -1};
  check_ids("a.bin", 0, 256, ids.data(), 3);
  CHECK(has(message_of<DataError>([&] { check_ids("a.bin", 40, 256, ids.data(), 5); }),
            "a.bin: token 43 has id 256, but model.vocab_size is 256"));
  CHECK(has(message_of<DataError>([&] { check_ids("a.bin", 40, 100000, ids.data(), 5); }),
            "a.bin: token 44 has id 4294967295, but model.vocab_size is 100000"));
}

TEST_CASE("what a writer writes reads back in the narrowest width") {
  const TempFolder folder;
  for (const std::int64_t n_ids : {256, 65536, 65537, 100000}) {
    const std::string path = folder / "w.bin";
    TokenWriter writer({.path = path, .n_ids = n_ids});
    Ids ids;
    for (std::int64_t i = 0; i < 600'000; ++i) {  // over one block of the writer
      ids.push_back(static_cast<std::int32_t>(i * 7919 % n_ids));
    }
    writer.write(ids.data(), 1000);
    writer.write(ids.data() + 1000, static_cast<std::int64_t>(ids.size()) - 1000);
    const std::uint64_t checksum = writer.finish();
    CHECK(all_of(TokenFile(path)) == ids);
    CHECK(std::filesystem::file_size(path) == 1024 + ids.size() * (n_ids > 65536 ? 4 : 2));
    CHECK(checksum_tokens(path) == checksum);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(900'001).put('\x5a');
    file.close();
    CHECK(checksum_tokens(path) != checksum);
  }
}

}  // namespace llm::test
