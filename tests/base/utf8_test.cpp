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
