#include <catch2/catch.hpp>
#include <random>

#include "src/base/error.h"
#include "src/data/characters.h"
#include "src/data/pattern.h"
#include "src/data/splitter.h"
#include "tests/data/tokenizers.h"

namespace llm::test {
namespace {

/// A splitter that PCRE2 carries out, whatever the pattern: its group keeps the scanner away.
std::unique_ptr<Splitter> by_pcre2(const std::string& pattern) {
  return make_splitter({"(?:" + pattern + ")", false}, "pattern");
}

std::string utf8(char32_t code) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 0x3F))};
  if (code < 0x10000) {
    return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
  }
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 0x3F)),
          byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
}

const std::vector<std::string> parts = {"a",
                                        "Z",
                                        "st",
                                        "\u017f",
                                        "é",
                                        "日",
                                        "本",
                                        "ß",
                                        "0",
                                        "12",
                                        "٣",
                                        "½",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "\u00a0",
                                        "\u2003",
                                        "\u180e",
                                        "\u0085",
                                        "'",
                                        "'s",
                                        "'S",
                                        "'re",
                                        "'LL",
                                        "'t",
                                        "!",
                                        "...",
                                        "(",
                                        "🙂",
                                        "\u0301",
                                        "\u200b",
                                        "_",
                                        "#",
                                        "'\u017f",
                                        std::string(1, '\0')};

std::string random_text(std::mt19937& random, std::size_t n_parts) {
  std::string text;
  for (std::size_t i = 0; i < n_parts; ++i) text += parts[random() % parts.size()];
  return text;
}

struct Known {
  const char* name;
  const char* pattern;
};
const Known known[] = {{"GPT-2", gpt2_pattern}, {"Llama 3", llama3_pattern}};

}  // namespace

TEST_CASE("spaces are split as GPT-2 does, the last of a run goes with the word") {
  const auto scanner = make_scanner(gpt2_pattern);
  CHECK(pieces_of(*scanner, "a  b") == "a| | b");
  CHECK(pieces_of(*scanner, "   return") == "  | return");
  CHECK(pieces_of(*scanner, "x   ") == "x|   ");
  CHECK(pieces_of(*scanner, "a\n\nb") == "a|\n|\n|b");
  CHECK(pieces_of(*scanner, "it's 12 o'clock!") == "it|'s| 12| o|'|clock|!");
}

TEST_CASE("lines, numbers and contractions are split as Llama 3 does") {
  const auto scanner = make_scanner(llama3_pattern);
  CHECK(pieces_of(*scanner, "a  b") == "a| | b");
  CHECK(pieces_of(*scanner, "x;  \n\n  y") == "x|;|  \n\n| | y");
  CHECK(pieces_of(*scanner, "12345 IT'S (a)") == "123|45| IT|'S| (|a|)");
  CHECK(pieces_of(*scanner, "end.\n\n") == "end|.\n\n");
}

TEST_CASE("a scanner and PCRE2 agree on every character beside every kind of neighbour") {
  for (const Known& k : known) {
    const auto scanner = make_scanner(k.pattern);
    const auto oracle = by_pcre2(k.pattern);
    int n_different = 0;
    std::string text;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if (code >= 0xD800 && code < 0xE000) continue;
      const std::string c = utf8(code);
      text += "a" + c + "b 1" + c + "2 " + c + "! " + c + c + "\n";
      if (text.size() < 200'000 && code != 0x10FFFF) continue;
      std::vector<std::size_t> expected;
      std::vector<std::size_t> ends;
      oracle->split(text, 0, expected);
      scanner->split(text, 0, ends);
      n_different += ends != expected;
      text.clear();
    }
    INFO(k.name);
    CHECK(n_different == 0);
  }
}

TEST_CASE("a scanner and PCRE2 agree on random texts") {
  std::mt19937 random(1);
  const int n_texts = std::getenv("LLM_TEST_FULL") != nullptr ? 200'000 : 10'000;
  for (const Known& k : known) {
    const auto scanner = make_scanner(k.pattern);
    const auto oracle = by_pcre2(k.pattern);
    for (int i = 0; i < n_texts; ++i) {
      const std::string text = random_text(random, 1 + random() % 12);
      const std::string expected = pieces_of(*oracle, text);
      if (pieces_of(*scanner, text) == expected) continue;
      INFO(k.name << ": " << text);
      CHECK(pieces_of(*scanner, text) == expected);
    }
  }
}

TEST_CASE("a sure end stays whatever follows") {
  std::mt19937 random(2);
  std::vector<std::unique_ptr<Splitter>> splitters;
  for (const Known& k : known) splitters.push_back(make_scanner(k.pattern));
  for (const Known& k : known) splitters.push_back(by_pcre2(k.pattern));
  splitters.push_back(make_splitter({"\\p{N}{1,3}", false}, "digits"));
  splitters.push_back(make_splitter({" ", true}, "blanks"));
  splitters.push_back(make_splitter({"(?=\\d\\d)", false}, "before digits"));
  for (const auto& splitter : splitters) {
    int n_found = 0;
    for (int i = 0; i < 1000; ++i) {
      const std::string text = random_text(random, 10);
      const std::string more = random_text(random, 10);
      const std::size_t at = splitter->sure_end(text);
      REQUIRE(at < text.size());
      n_found += at > 0;
      std::vector<std::size_t> whole;
      std::vector<std::size_t> in_two;
      splitter->split(text + more, 0, whole);
      if (at > 0) splitter->split(text.substr(0, at), 0, in_two);
      splitter->split(text.substr(at) + more, at, in_two);
      if (whole != in_two) {
        INFO(text << "$" << more << " at " << at);
        CHECK(whole == in_two);
      }
    }
    CHECK(n_found > 100);
  }
}

TEST_CASE("a pattern that looks back has no sure end") {
  CHECK(make_splitter({"(?<=a)b", false}, "p")->sure_end("ab ab ab") == 0);
}

TEST_CASE("what lies between matches is a piece, and so is the text between empty matches") {
  CHECK(pieces_of(*make_splitter({"\\d+", false}, "p"), "ab12cd3") == "ab|12|cd|3");
  CHECK(pieces_of(*make_splitter({"(?=\\d)", false}, "p"), "ab12c") == "ab|1|2c");
  CHECK(pieces_of(*make_splitter({"\\s*", false}, "p"), "a  b") == "a|  |b");
  CHECK(pieces_of(*make_splitter({".", true}, "p"), "a.b") == "a|.|b");
  CHECK(pieces_of(*make_splitter({"[\\u4e00-\\u9fa5]+", false}, "p"), "a日本b") == "a|日本|b");
}

TEST_CASE("a pattern that PCRE2 would read otherwise is refused with the place") {
  const auto refusal = [](const std::string& pattern) {
    return message_of<DataError>([&] { make_splitter({pattern, false}, "t.json: x"); });
  };
  for (const char* const pattern :
       {"\\w+", "a\\b", "\\h", "^a", "a$", "(?m:a)", "(?P<n>a)", "(*UCP)a", "[a-z&&[^b]]", "[[a]]",
        "\\R", "\\X", "\\K", "a|\\G", "\\uzzzz"}) {
    INFO(pattern);
    CHECK(has(refusal(pattern), "t.json: x: "));
    CHECK(has(refusal(pattern), "does not mean the same to PCRE2"));
  }
  CHECK(has(refusal("a("), "t.json: x: the pattern is no regular expression"));
  CHECK(has(refusal(""), "t.json: x: the pattern is empty"));
  CHECK(has(refusal(std::string(20000, 'a')), "the pattern has 20000 bytes"));
  for (const char* const fine :
       {"[\\s\\S]", "[^\\]a]", "[]a]", "(?i:a)", "a++", "[[:alpha:]]", "\\.\\^\\$\\\\"}) {
    INFO(fine);
    CHECK(refusal(fine) == "nothing thrown");
  }
}

TEST_CASE("a pattern that takes out of all proportion ends with a message") {
  const auto splitter = make_splitter({"(?:a+)+[bc]", false}, "t.json: x");
  const std::string text(60, 'a');
  CHECK(has(message_of<DataError>([&] { pieces_of(*splitter, text); }),
            "t.json: x: matching the pattern failed at byte 0"));
}

TEST_CASE("classes of characters are Unicode's") {
  const CharacterTable& table = CharacterTable::get();
  using enum CharacterClass;
  CHECK(table[U'é'] == letter);
  CHECK(table[U'日'] == letter);
  CHECK(table[U'½'] == number);
  CHECK(table[0xA0] == space);
  CHECK(table[U'\n'] == newline);
  CHECK(table[0x180E] == other);
  CHECK(table[0x301] == other);
  CHECK(table[0x10FFFF] == other);
}

}  // namespace llm::test
