#include "src/data/glob.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "tests/data/files.h"

namespace llm::test {

namespace {

/// Names relative to `folder` of what `patterns` (relative too) match.
std::vector<std::string> matched(const TempFolder& folder, std::vector<std::string> patterns) {
  for (std::string& pattern : patterns) pattern = folder / pattern;
  std::vector<std::string> names;
  for (const std::string& path : expand_patterns(patterns, "data.dataset_path")) {
    names.push_back(path.substr((folder / "").size()));
  }
  return names;
}

std::string refusal(const std::string& pattern) {
  return message_of<DataError>([&] { expand_patterns({pattern}, "data.dataset_path"); });
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a pattern matches the files that it names, in the order of their bytes") {
  const TempFolder folder;
  for (const char* name : {"b.txt", "a.txt", "a.md", "B.txt", "sub/c.txt", "sub/deep/d.txt",
                           "sub/deep/e.md", ".hidden/f.txt", ".dot.txt", "x[1].txt", "ab.txt"}) {
    folder.write(name, "text");
  }
  CHECK(matched(folder, {"*.txt"}) == Names{"B.txt", "a.txt", "ab.txt", "b.txt", "x[1].txt"});
  CHECK(matched(folder, {"?.txt"}) == Names{"B.txt", "a.txt", "b.txt"});
  CHECK(matched(folder, {"[a-z].txt"}) == Names{"a.txt", "b.txt"});
  CHECK(matched(folder, {"[!a].txt"}) == Names{"B.txt", "b.txt"});
  CHECK(matched(folder, {"**/*.md"}) == Names{"a.md", "sub/deep/e.md"});
  CHECK(matched(folder, {"sub/**"}) == Names{"sub/c.txt", "sub/deep/d.txt", "sub/deep/e.md"});
  CHECK(matched(folder, {"**/deep/**/*.txt"}) == Names{"sub/deep/d.txt"});
  CHECK(matched(folder, {"**/**/d.txt"}) == Names{"sub/deep/d.txt"});
  CHECK(matched(folder, {"{b,a}.{md,txt}"}) == Names{"a.md", "a.txt", "b.txt"});
  CHECK(matched(folder, {"{sub/{c,nothing},a}.txt"}) == Names{"a.txt", "sub/c.txt"});
  CHECK(matched(folder, {"a*.txt"}) == Names{"a.txt", "ab.txt"});
  CHECK(matched(folder, {".*.txt"}) == Names{".dot.txt"});
  CHECK(matched(folder, {".hidden/*"}) == Names{".hidden/f.txt"});
  CHECK(matched(folder, {"x[1].txt"}) == Names{"x[1].txt"});  // the file itself, not a pattern
}

TEST_CASE("several patterns keep their order and take a file once") {
  const TempFolder folder;
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) folder.write(name, "text");
  CHECK(matched(folder, {"c.txt", "*.txt", "a.txt"}) == Names{"c.txt", "a.txt", "b.txt"});
}

TEST_CASE("a pattern without files is refused by its name") {
  const TempFolder folder;
  folder.write("sub/a.txt", "text");
  CHECK(has(refusal(folder / "*.md"), "data.dataset_path: '" + (folder / "*.md") + "' matches no"));
  CHECK(has(refusal(folder / "none.txt"), "none.txt' does not exist"));
  CHECK(has(refusal(folder / "{x,y}.txt"), "{x,y}.txt' matches no file"));
  CHECK(has(refusal(folder / "sub"), "sub' is a folder; name its files, as in"));
  CHECK(has(refusal(folder / "s*"), "s*' matches only folders; add '/**'"));
  CHECK(has(refusal(folder / "{a,b"), "unclosed '{'"));
  CHECK(has(refusal(folder / "[ab.txt"), "unclosed '['"));
  CHECK(has(refusal(""), "data.dataset_path: a path is empty"));
}

TEST_CASE("a pipe is refused without being opened") {
  const TempFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(has(refusal(folder / "pipe"), "pipe' is not a regular file"));
}

TEST_CASE("a cycle of folder links ends") {
  const TempFolder folder;
  folder.write("sub/a.txt", "text");
  std::filesystem::create_directory_symlink("..", folder / "sub/up");
  CHECK(matched(folder, {"**/*.txt"}) == Names{"sub/a.txt"});
}

}  // namespace llm::test
