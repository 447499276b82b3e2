#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/io/safetensors.h"
#include "tests/io/temporary_folder.h"

namespace llm {
namespace {

const std::vector<std::string> pieces = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\xff",
    "\xc3\xa9",
    std::string(1, '\0'),
    " ",
    "0",
    "1",
    "-1",
    "1.5",
    "1e9",
    "8",
    "16",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "null",
    "true",
    "\"F32\"",
    "\"BF16\"",
    "\"F64\"",
    "\"I8\"",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "\"a\":",
    "\"b\"",
    "[0,0]",
    "[0,8]",
    "[8,16]",
    "[[[[[[",
    "{\"a\":{",
    "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]},"};

const std::vector<std::string> bases = {
    "{}", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
    R"({"__metadata__":{"format":"pt","x":"y"},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},)"
    R"("e":{"dtype":"U8","shape":[0,3],"data_offsets":[16,16]}}   )",
    R"({"b":{"shape":[],"dtype":"F64","data_offsets":[8,16]},)"
    R"("a":{"data_offsets":[0,8],"shape":[2],"dtype":"I32"}})"};
constexpr std::int64_t n_data_bytes[] = {0, 8, 16, 16};

/// The text with a few random edits: insertions of pieces, changed bytes and digits, cuts, copies.
std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::size_t{random()} % (n > 0 ? n : 1); };
  const std::size_t n_edits = 1 + below(4);
  for (std::size_t i = 0; i < n_edits; ++i) {
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        text.insert(at, pieces[below(pieces.size())]);
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>('0' + below(10));
        break;
      case 3:
        text.erase(at, below(12));
        break;
      case 4: {
        const std::size_t from = below(text.size() + 1);
        text.insert(at, text.substr(from, below(60)));
        break;
      }
      default:
        text.insert(at, std::to_string(below(20)));
    }
  }
  return text;
}

std::int64_t n_inputs() {
  const char* const full = std::getenv("LLM_TEST_FULL");
  return full != nullptr && std::strcmp(full, "1") == 0 ? 1'000'000 : 5'000;
}

/// What every accepted header keeps to, checked without the reader's own rules.
void check_header(const SafetensorsHeader& header, std::int64_t begin, std::int64_t end) {
  std::set<std::string> names;
  std::int64_t next = begin;
  for (const SafetensorsEntry& entry : header.tensors) {
    REQUIRE(names.insert(entry.name).second);
    REQUIRE(entry.bytes.begin == next);
    REQUIRE(entry.bytes.end >= next);
    std::int64_t n = static_cast<std::int64_t>(size_of(entry.dtype));
    for (const std::int64_t extent : entry.shape) n *= extent;
    REQUIRE(n == entry.bytes.size());
    next = entry.bytes.end;
  }
  REQUIRE(next == end);
}

}  // namespace

TEST_CASE("a mutated header is whole and without contradiction, or refused by the file's name") {
  constexpr unsigned seed = 20240307;
  std::mt19937 random(seed);
  std::int64_t n_accepted = 0;
  for (std::int64_t i = 0; i < n_inputs(); ++i) {
    const std::size_t base = static_cast<std::size_t>(i) % bases.size();
    const std::string text = mutated(bases[base], random);
    const auto begin = 8 + static_cast<std::int64_t>(text.size());
    const std::int64_t end = begin + n_data_bytes[base] + (i % 7 == 0 ? 8 : 0);
    INFO("seed " << seed << ", input " << i << ": " << text);
    try {
      check_header(parse_safetensors_header("f.safetensors", text, begin, end), begin, end);
      ++n_accepted;
    } catch (const DataError& error) {
      if (std::string(error.what()).find("f.safetensors: ") != 0) FAIL(error.what());
    }
  }
  WARN(n_inputs() << " mutated headers, " << n_accepted << " accepted");
  CHECK(n_accepted > n_inputs() / 200);
  CHECK(n_accepted < n_inputs() / 2);
}

TEST_CASE("a mutated file is read within its bytes or refused by its name") {
  constexpr unsigned seed = 5;
  std::mt19937 random(seed);
  const TemporaryFolder folder;
  const auto path = folder / "f.safetensors";
  const std::int64_t n = std::max<std::int64_t>(500, n_inputs() / 50);
  std::int64_t n_accepted = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t base = static_cast<std::size_t>(i) % bases.size();
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(bases[base].size());
    bytes[1] = static_cast<char>(bases[base].size() >> 8);
    bytes += bases[base] + std::string(static_cast<std::size_t>(n_data_bytes[base]), 'x');
    if (i % 3 == 0) {
      bytes[random() % 8] = static_cast<char>(random());
    } else {
      bytes = mutated(bytes, random);
    }
    write_plainly(path, bytes);
    INFO("seed " << seed << ", input " << i << ": " << bytes);
    try {
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.tensors()) {
        std::vector<char> data(static_cast<std::size_t>(entry.bytes.size()));
        file.read(entry, {0, entry.n_elements()}, data.data());
      }
      ++n_accepted;
    } catch (const DataError& error) {
      REQUIRE_THAT(error.what(), Catch::Contains("f.safetensors: "));
    }
  }
  WARN(n << " mutated files, " << n_accepted << " accepted");
  CHECK(n_accepted > 0);
}

TEST_CASE("every truncation and every longer form of a small file is refused") {
  const TemporaryFolder folder;
  const auto fill = [](std::span<std::byte> bytes) {
    for (std::byte& b : bytes) b = std::byte{7};
  };
  write_safetensors(folder / "good", {{"a", Dtype::f32, {2, 3}, fill},
                                      {"b", Dtype::bf16, {5}, fill},
                                      {"c", Dtype::u8, {1}, fill}});
  const std::string good = read_file(folder / "good");
  const auto path = folder / "bad";
  for (std::size_t n = 0; n < good.size(); ++n) {
    write_plainly(path, good.substr(0, n));
    INFO(n << " of " << good.size() << " bytes");
    CHECK_THROWS_AS(SafetensorsFile(path), DataError);
  }
  for (std::size_t n = 1; n <= 16; ++n) {
    write_plainly(path, good + std::string(n, '\0'));
    CHECK_THROWS_WITH(SafetensorsFile(path), Catch::Contains("follow the last tensor"));
  }
}

}  // namespace llm
