#include "src/base/utf8.h"

#include <catch2/catch.hpp>
#include <string>

using namespace llm;

TEST_CASE(
    "a character is as long as the Unicode standard's table says, and what is none has none") {
  CHECK(utf8_length("a", 0) == 1);
  CHECK(utf8_length("\xC3\xA9", 0) == 2);
  CHECK(utf8_length("\xE2\x82\xAC", 0) == 3);
  CHECK(utf8_length("\xF0\x9F\x98\x80", 0) == 4);
  for (const std::string none :
       {"\x80", "\xC1\x81", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "\xC3", "\xE2\x28\xA1"}) {
    CHECK(utf8_length(none, 0) == 0);
  }
}

TEST_CASE("any two bytes are shown as UTF-8 without control characters") {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text{'x', static_cast<char>(a), static_cast<char>(b), 'y'};
      const std::string shown = shown_text(text);
      for (std::size_t at = 0; at < shown.size();) {
        const std::size_t n = utf8_length(shown, at);
        REQUIRE(n > 0);
        const auto byte = static_cast<unsigned char>(shown[at]);
        REQUIRE(((byte >= 0x20 && byte != 0x7F) || byte == '\n'));
        at += n;
      }
    }
  }
  CHECK(shown_text("a\nb\tc\xE0\x80") == "  a\n  b c\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("text in pieces of any size shows whole characters alone, and all of them") {
  const std::string text = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80!\n";  // 1, 2, 3, 4 bytes
  for (std::size_t size = 1; size <= text.size(); ++size) {
    TextStream stream;
    std::string shown;
    for (std::size_t at = 0; at < text.size(); at += size) {
      const std::string piece = stream.add(text.substr(at, size));
      for (std::size_t i = 0; i < piece.size();) {
        const std::size_t n = utf8_length(piece, i);
        REQUIRE(n > 0);
        i += n;
      }
      shown += piece;
    }
    CHECK(shown == text);
    CHECK(stream.finish().empty());
  }
}

TEST_CASE(
    "what is no UTF-8 is replaced as soon as that is known, and control characters are not shown") {
  const std::string replaced = "\xEF\xBF\xBD";
  TextStream stream;
  CHECK(stream.add("\xE4") == "");
  CHECK(stream.add("a") == replaced + "a");              // it did not go on
  CHECK(stream.add("\xED\xA0") == replaced + replaced);  // half of a surrogate
  CHECK(stream.add("\x80\xFF") == replaced + replaced);
  CHECK(stream.add("\x1B[31m\tb\r\x7F\n") == " [31m\tb  \n");
  CHECK(stream.add("\xF0\x9F\x98") == "");
  CHECK(stream.finish() == replaced + replaced + replaced);  // cut at the end
  CHECK(stream.finish() == "");
}
