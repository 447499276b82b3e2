#include "src/io/safetensors.h"

#include <sys/stat.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "src/base/error.h"
#include "tests/io/temporary_folder.h"

namespace llm {
namespace {

std::string length_bytes(std::uint64_t n) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i));
  return bytes;
}

/// A file of this header and so many bytes of data.
std::string with_header(const std::string& header, std::size_t n_data_bytes) {
  return length_bytes(header.size()) + header + std::string(n_data_bytes, 'x');
}

/// The header of one tensor "a" of two f32, with this in place of one of its fields.
std::string header_with(const std::string& field, const std::string& value) {
  const auto pick = [&](const char* name, const char* usual) {
    return std::string("\"") + name + "\":" + (field == name ? value : usual);
  };
  return "{\"a\":{" + pick("dtype", "\"F32\"") + "," + pick("shape", "[2]") + "," +
         pick("data_offsets", "[0,8]") + "}}";
}

void fill_counting(std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
}

}  // namespace

TEST_CASE("what is written is read: names, types, shapes, bytes, metadata") {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_safetensors(path, {{"b", Dtype::f32, {2, 3}, fill_counting},
                           {"half", Dtype::bf16, {5}, fill_counting},
                           {"a \"quoted\" \u00e9", Dtype::f32, {}, fill_counting},
                           {"empty", Dtype::i32, {0, 7}, fill_counting},
                           {"long", Dtype::f64, {1}, fill_counting},
                           {"byte", Dtype::u8, {3}, fill_counting}});
  const SafetensorsFile file(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.tensors().size() == 6);
  CHECK(file.contains("empty"));
  CHECK(file.find("empty").shape == std::vector<std::int64_t>{0, 7});
  CHECK(file.find("a \"quoted\" \u00e9").n_elements() == 1);
  CHECK((file.find("half").dtype == Dtype::bf16));
  const SafetensorsEntry& b = file.find("b");
  CHECK(b.shape == std::vector<std::int64_t>{2, 3});
  unsigned char bytes[8];
  file.read(b, {1, 3}, bytes);
  for (int i = 0; i < 8; ++i) CHECK(bytes[i] == i + 4);
  CHECK(file.read_f32("b").size() == 6);
  CHECK_THROWS_WITH(file.find("c"), Catch::Contains("\"c\"") && Catch::Contains("6 tensors"));
  CHECK_THROWS_WITH(file.read_f32("long"),
                    Catch::Contains("\"long\" holds F64") && Catch::Contains("F32, BF16 or F16"));
}

TEST_CASE("16-bit numbers are read as the f32 that they are, wherever the part begins") {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  constexpr std::int64_t n = 300'000;  // more than is converted at a time
  const auto fill = [](std::span<std::byte> bytes) {
    auto* const halves = reinterpret_cast<std::uint16_t*>(bytes.data());
    for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
      halves[i] = static_cast<std::uint16_t>(i % 0x7C00);  // every finite f16 above 0
    }
  };
  write_safetensors(path, {{"b", Dtype::bf16, {n}, fill}, {"h", Dtype::f16, {n}, fill}});
  const SafetensorsFile file(path);
  const auto bf16_of = [](std::int64_t i) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(i % 0x7C00) << 16);
  };
  const auto f16_of = [](std::int64_t i) {  // IEEE 754: 5 bits of exponent, 10 of fraction
    const auto bits = static_cast<int>(i % 0x7C00);
    const int exponent = bits >> 10;
    const int fraction = bits & 0x3FF;
    return exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                         : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  };
  for (const Range part : {Range{0, n}, Range{1, 2}, Range{262'143, 262'145}, Range{7, 290'001}}) {
    std::vector<float> b(static_cast<std::size_t>(part.size()));
    std::vector<float> h(b.size());
    file.read_f32(file.find("b"), part, b.data());
    file.read_f32(file.find("h"), part, h.data());
    std::int64_t n_wrong = 0;
    for (std::int64_t i = part.begin; i < part.end; ++i) {
      const auto at = static_cast<std::size_t>(i - part.begin);
      n_wrong += b[at] == bf16_of(i) && h[at] == f16_of(i) ? 0 : 1;
    }
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("BOOL counts as bytes, as masks in older checkpoints are") {
  const TemporaryFolder folder;
  write_plainly(folder / "f", with_header("{\"m\":{\"dtype\":\"BOOL\",\"shape\":[2,2],"
                                          "\"data_offsets\":[0,4]}}",
                                          4));
  CHECK((SafetensorsFile(folder / "f").find("m").dtype == Dtype::u8));
}

TEST_CASE("what is no regular file is refused at once, and a missing one by its path") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsFile(folder / "none"), Catch::Contains("none"));
  CHECK_THROWS_AS(SafetensorsFile(folder.path()), FileError);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(SafetensorsFile(folder / "pipe"), FileError);
}

TEST_CASE("a file that is cut short after it was opened is an error, not a fault") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {{"a", Dtype::f32, {4096}, fill_counting}});
  const SafetensorsFile file(folder / "f");
  std::filesystem::resize_file(folder / "f", 1000);
  CHECK_THROWS_AS(file.read_f32("a"), FileError);
}

TEST_CASE("tensors lie by falling element size, then by name, behind a header of whole words") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {{"b", Dtype::f32, {1}, fill_counting},
                                   {"a", Dtype::u8, {1}, fill_counting},
                                   {"c", Dtype::f64, {1}, fill_counting},
                                   {"a2", Dtype::f32, {1}, fill_counting}});
  const SafetensorsFile file(folder / "f");
  std::string order;
  for (const SafetensorsEntry& entry : file.tensors()) {
    order += entry.name + " ";
    CHECK(entry.bytes.begin % static_cast<std::int64_t>(size_of(entry.dtype)) == 0);
  }
  CHECK(order == "c a2 b a ");
  CHECK(file.tensors()[0].bytes.begin % 8 == 0);
}

TEST_CASE("a file without tensors is a file") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {});
  CHECK(SafetensorsFile(folder / "f").tensors().empty());
}

TEST_CASE("two writes of the same tensors give the same bytes") {
  const TemporaryFolder folder;
  for (const char* name : {"f", "g"}) {
    write_safetensors(folder / name, {{"a", Dtype::f32, {9}, fill_counting}});
  }
  std::ifstream f(folder / "f", std::ios::binary);
  std::ifstream g(folder / "g", std::ios::binary);
  CHECK(std::equal(std::istreambuf_iterator<char>(f), {}, std::istreambuf_iterator<char>(g), {}));
}

TEST_CASE("every malformed file is refused, naming it, before anything of its size is allocated") {
  const std::string good = header_with("", "");
  const std::string big(40, '9');
  const std::string pair = "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
  const std::string second = "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":";
  const std::vector<std::pair<const char*, std::string>> cases{
      {"too few for", ""},
      {"too few for", "abcdefg"},
      {"header of 0 bytes", length_bytes(0) + good},
      {"header of 1 bytes", length_bytes(1) + "{"},
      {"cannot be in a file", length_bytes(good.size() + 9) + good + std::string(8, 'x')},
      {"longer than the format's", length_bytes(std::uint64_t{1} << 63) + good},
      {"longer than the format's", length_bytes(~std::uint64_t{0} - 7) + good},
      {"longer than the format's 100,000,000", length_bytes(100'000'001) + good},
      {"cannot be in a file", length_bytes(100'000'000) + good},
      {"does not begin with '{'", with_header(" " + good, 8)},
      {"does not begin with '{'", with_header("[]", 0)},
      {"not JSON", with_header("{\"a\"", 0)},
      {"not JSON", with_header("{{}}", 0)},
      {"not JSON", with_header(good + "{}", 8)},
      {"not JSON", with_header(good + "x", 8)},
      {"not JSON", with_header("{\"\xff\xfe\":{}}", 0)},
      {"not JSON", with_header(header_with("shape", "[1,]"), 8)},
      {"not JSON", with_header(header_with("shape", "[NaN]"), 8)},
      {"NUL", with_header(good + std::string(3, '\0'), 8)},
      {"\"a\" twice", with_header("{" + pair + "," + pair + "}", 8)},
      {"\"shape\" twice", with_header("{\"a\":{\"shape\":[2],\"shape\":[2]}}", 8)},
      {"\"x\" twice", with_header("{\"__metadata__\":{\"x\":\"1\",\"x\":\"1\"}}", 0)},
      {"\"__metadata__\" twice", with_header("{\"__metadata__\":{},\"__metadata__\":{}}", 0)},
      {"unknown key \"size\"", with_header("{\"a\":{\"size\":[2]}}", 8)},
      {"is missing", with_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8)},
      {"is missing", with_header("{\"a\":{}}", 0)},
      {"element type \"F31\"", with_header(header_with("dtype", "\"F31\""), 8)},
      {"element type \"f32\"", with_header(header_with("dtype", "\"f32\""), 8)},
      {"element type \"C64\"", with_header(header_with("dtype", "\"C64\""), 8)},
      {"a number", with_header(header_with("dtype", "32"), 8)},
      {"a list", with_header(header_with("dtype", "[2]"), 8)},
      {"null", with_header(header_with("shape", "null"), 8)},
      {"a boolean", with_header(header_with("shape", "[true]"), 8)},
      {"a string", with_header(header_with("shape", "[\"2\"]"), 8)},
      {"a list", with_header(header_with("shape", "[[2]]"), 8)},
      {"an object", with_header(header_with("shape", "{\"a\":{}}"), 8)},
      {"a negative number", with_header(header_with("shape", "[-2]"), 8)},
      {"not an integer", with_header(header_with("shape", "[2.0]"), 8)},
      {"not an integer", with_header(header_with("shape", "[2e0]"), 8)},
      {"not an integer", with_header(header_with("shape", "[" + big + "]"), 8)},
      {"above 2^63", with_header(header_with("shape", "[18446744073709551615]"), 8)},
      {"more than 16", with_header(header_with("shape", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]"), 8)},
      {"more bytes than 2^63", with_header(header_with("shape", "[4294967296,4294967296]"), 8)},
      {"more bytes than 2^63", with_header(header_with("shape", "[2305843009213693952]"), 8)},
      {"needs 12 bytes", with_header(header_with("shape", "[3]"), 8)},
      {"needs 4 bytes", with_header(header_with("shape", "[]"), 8)},
      {"not inside", with_header(header_with("data_offsets", "[8,0]"), 8)},
      {"not inside", with_header(header_with("data_offsets", "[4,12]"), 8)},
      {"not inside", with_header(good, 7)},
      {"0 numbers instead of 2", with_header(header_with("data_offsets", "[]"), 8)},
      {"1 numbers instead of 2", with_header(header_with("data_offsets", "[8]"), 8)},
      {"3 numbers instead of 2", with_header(header_with("data_offsets", "[0,8,8]"), 8)},
      {"negative number", with_header(header_with("data_offsets", "[-8,0]"), 8)},
      {"hole", with_header(header_with("data_offsets", "[4,12]"), 12)},
      {"overlap", with_header("{" + pair + "," + second + "[4,12]}}", 12)},
      {"overlap", with_header("{" + pair + "," + second + "[0,8]}}", 8)},
      {"hole", with_header("{" + pair + "," + second + "[12,20]}}", 20)},
      {"4 bytes follow", with_header(good, 12)},
      {"a string", with_header("{\"a\":\"F32\"}", 0)},
      {"a number", with_header("{\"a\":1}", 0)},
      {"a list", with_header("{\"a\":[]}", 0)},
      {"a number", with_header("{\"__metadata__\":{\"format\":1}}", 0)},
      {"an object", with_header("{\"__metadata__\":{\"format\":{}}}", 0)},
      {"a list", with_header("{\"__metadata__\":[]}", 0)},
      {"the name is empty", with_header("{\"\":{\"dtype\":\"F32\",\"shape\":[0],"
                                        "\"data_offsets\":[0,0]}}",
                                        0)},
      {"control character", with_header("{\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[0],"
                                        "\"data_offsets\":[0,0]}}",
                                        0)},
      {"slash", with_header("{\"../a\":{\"dtype\":\"F32\",\"shape\":[0],"
                            "\"data_offsets\":[0,0]}}",
                            0)},
      {"an object", with_header("{\"a\":{\"dtype\":{\"a\":{\"a\":{\"a\":{}}}}}}", 0)},
      {"a list", with_header("{\"a\":" + std::string(100'000, '[') + "}", 0)},
  };
  const TemporaryFolder folder;
  const auto path = folder / "bad.safetensors";
  for (const auto& [message, bytes] : cases) {
    INFO(bytes.substr(0, 200));
    write_plainly(path, bytes);
    CHECK_THROWS_WITH(SafetensorsFile(path),
                      Catch::Contains(message) && Catch::Contains("bad.safetensors"));
    CHECK_THROWS_AS(SafetensorsFile(path), DataError);
  }
  WARN(cases.size() << " malformed files refused");
  write_plainly(path, with_header(good, 8));
  CHECK(SafetensorsFile(path).tensors().size() == 1);
}

TEST_CASE("no truncation and no flipped bit of a good file's header is more than an error") {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  write_safetensors(
      path, {{"a", Dtype::f32, {2, 2}, fill_counting}, {"b", Dtype::f32, {3}, fill_counting}});
  std::ifstream stream(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(stream), {}};
  int n_refused = 0;
  const auto open = [&](const std::string& bytes) {
    write_plainly(path, bytes);
    try {
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.tensors()) {
        std::vector<char> data(static_cast<std::size_t>(entry.bytes.size()));
        file.read(entry, {0, entry.n_elements()}, data.data());
      }
    } catch (const DataError&) {
      ++n_refused;
    }
  };
  for (std::size_t n = 0; n < good.size(); ++n) open(good.substr(0, n));
  CHECK(n_refused == static_cast<int>(good.size()));
  const std::size_t n_header = good.size() - 28;
  for (std::size_t bit = 0; bit < 8 * n_header; bit += 3) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    open(flipped);
  }
  CHECK(n_refused > static_cast<int>(good.size()) + 100);
}

}  // namespace llm
