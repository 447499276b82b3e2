#include "src/base/file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "src/base/error.h"
#include "tests/io/temporary_folder.h"

namespace llm {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::ptrdiff_t n_files(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

}  // namespace

TEST_CASE("a file is written as a whole under its own name") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "first");
  CHECK(text_of(folder / "a") == "first");
  write_file_atomically(folder / "a", [](OutputFile& file) {
    file.append("se");
    file.append("cond");
  });
  CHECK(text_of(folder / "a") == "second");
  write_file_atomically(folder / "a", "");
  CHECK(text_of(folder / "a").empty());
  CHECK(n_files(folder.path()) == 1);
}

TEST_CASE("a writer that fails leaves the old file and nothing beside it") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  CHECK_THROWS_AS(write_file_atomically(folder / "a",
                                        [](OutputFile& file) {
                                          file.append("half");
                                          throw DataError("no more");
                                        }),
                  DataError);
  CHECK(text_of(folder / "a") == "old");
  CHECK(n_files(folder.path()) == 1);
}

TEST_CASE("a folder that is not there, or a target that is a folder, is an error naming the path") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(write_file_atomically(folder / "none" / "a", "x"),
                    Catch::Contains("none/a") && Catch::Contains("No such file"));
  std::filesystem::create_directory(folder / "a");
  write_file_atomically(folder / "a" / "b", "x");
  CHECK_THROWS_AS(write_file_atomically(folder / "a", "x"), FileError);
  CHECK(n_files(folder.path()) == 1);
}

TEST_CASE("a full disk is an error that leaves nothing behind") {
  if (!std::filesystem::exists("/dev/full")) return;
  OutputFile file("/dev/full");
  CHECK_THROWS_WITH(file.append("x"), Catch::Contains("No space left"));
}

TEST_CASE("a file is read at any place, and not past its end") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "0123456789");
  const InputFile file(folder / "a");
  CHECK(file.n_bytes() == 10);
  std::string text(4, ' ');
  file.read(3, 4, text.data());
  CHECK(text == "3456");
  CHECK_THROWS_AS(file.read(8, 4, text.data()), FileError);
}

TEST_CASE("a file cut short after it was opened is an error") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "0123456789");
  const InputFile file(folder / "a");
  std::filesystem::resize_file(folder / "a", 5);
  std::string text(10, ' ');
  CHECK_THROWS_WITH(file.read(0, 10, text.data()), Catch::Contains("ends 5 bytes early"));
}

TEST_CASE("what is not a regular file is refused without waiting") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(InputFile(folder / "none"), FileError);
  CHECK_THROWS_AS(InputFile(folder.path()), FileError);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(InputFile(folder / "pipe"), FileError);
  std::filesystem::create_symlink(folder / "nowhere", folder / "link");
  CHECK_THROWS_AS(InputFile(folder / "link"), FileError);
}

}  // namespace llm
