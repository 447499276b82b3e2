#include "src/data/tokenizer.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "tests/data/files.h"

namespace llm::test {

TEST_CASE("every byte string survives the byte tokenizer") {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  text += "\xff\xfe\xc3\x28\xed\xa0\x80 \xf0\x9f\x98 <|endoftext|>\r\n";  // no valid UTF-8
  const ByteTokenizer tokenizer;
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  REQUIRE(ids.size() == text.size());
  for (std::int32_t id = 0; id < 256; ++id) CHECK(ids[static_cast<std::size_t>(id)] == id);
  CHECK(text_of(ids) == text);
}

TEST_CASE("encoding and decoding append") {
  const ByteTokenizer tokenizer;
  std::vector<std::int32_t> ids{7};
  tokenizer.encode("a", ids);
  CHECK(ids == std::vector<std::int32_t>{7, 97});
  std::string text = "x";
  tokenizer.decode(std::vector<std::int32_t>{98}, text);
  CHECK(text == "xb");
}

TEST_CASE("an id outside the bytes is not decoded") {
  for (const std::int32_t id : {-100, -1, 256}) {
    const auto decode = [&] { text_of({id}); };
    CHECK(message_of<DataError>(decode) ==
          "token id " + std::to_string(id) + " is none of the byte tokenizer's 256");
  }
}

TEST_CASE("a vocab_size below the tokenizer's is refused with both numbers") {
  check_vocab_size(256, ByteTokenizer());
  check_vocab_size(50257, ByteTokenizer());
  CHECK(message_of<ConfigError>([] { check_vocab_size(255, ByteTokenizer()); }) ==
        "model.vocab_size: 255 is below the 256 ids of the byte tokenizer; use 256 or more");
}

}  // namespace llm::test
