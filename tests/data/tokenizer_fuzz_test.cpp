#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <random>

#include "src/base/error.h"
#include "tests/data/tokenizers.h"

namespace llm::test {
namespace {

const std::vector<std::string> pieces = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "\"",
                                         "null",
                                         "true",
                                         "false",
                                         "0",
                                         "-1",
                                         "1e999",
                                         "2147483648",
                                         "99999999999999999999",
                                         "1.5",
                                         "\"\"",
                                         "\"a\"",
                                         "\"\\ud800\"",
                                         "\"\\u0000\"",
                                         "\xff",
                                         "\xed\xa0\x80",
                                         "\"Ġ\"",
                                         "\"he\":258,",
                                         "[\"h\",\"e\"]",
                                         "\"id\":",
                                         "\"content\":",
                                         "\"special\":true",
                                         "\"pattern\":",
                                         "\"Regex\":\"(a|b)*+\"",
                                         "(?i:",
                                         "\\\\p{L}+",
                                         "{\"type\":\"Digits\",\"individual_digits\":true},",
                                         "\"ignore_merges\":true,",
                                         "\"normalized\":true,",
                                         "\"lstrip\":true,",
                                         " ",
                                         "\n"};

/// A number that replaces one of the file's, a value that is deleted, doubled or moved: still JSON.
void change_value(Json& json, std::mt19937& random) {
  Json* at = &json;
  while (at->is_structured() && !at->empty() && random() % 4 != 0) {
    auto child = at->begin();
    std::advance(child, static_cast<std::ptrdiff_t>(random() % at->size()));
    at = &*child;
  }
  switch (random() % 6) {
    case 0:
      *at = static_cast<int>(random() % 600) - 20;
      break;
    case 1:
      *at = std::string(1, static_cast<char>(random() % 128));
      break;
    case 2:
      *at = Json::array({"h", "e"});
      break;
    case 3:
      if (at->is_array() && !at->empty()) at->push_back(at->front());
      break;
    case 4:
      if (at->is_array() && !at->empty()) at->erase(random() % at->size());
      break;
    default:
      *at = random() % 2 == 0;
  }
}

void change_bytes(std::string& text, std::mt19937& random) {
  const std::size_t at = random() % (text.size() + 1);
  switch (random() % 4) {
    case 0:
      text.insert(at, pieces[random() % pieces.size()]);
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 2:
      text.erase(at, random() % 20);
      break;
    default:
      text.insert(at, text.substr(random() % text.size(), random() % 40));
  }
}

std::string mutated(const Json& base, std::mt19937& random) {
  Json json = base;
  const std::size_t n_values = random() % 3;
  for (std::size_t i = 0; i < n_values; ++i) change_value(json, random);
  std::string text = json.dump();
  const std::size_t n_bytes = n_values == 0 ? 1 + random() % 4 : random() % 2;
  for (std::size_t i = 0; i < n_bytes && !text.empty(); ++i) change_bytes(text, random);
  return text;
}

}  // namespace

TEST_CASE("a mutated tokenizer.json is refused as data, or is a tokenizer that gives text back") {
  const bool full = std::getenv("LLM_TEST_FULL") != nullptr;
  const int n_inputs = full ? 1'000'000 : 4000;
  Json split = small_json();
  split["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"behavior", "Isolated"},
         {"pattern", {{"Regex", "[a-z]+|\\s+(?!\\S)"}}}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const std::string text = "see the  other\n\xff日本 12's<|endoftext|>";
  std::mt19937 random(6);
  int n_read = 0;
  for (int i = 0; i < n_inputs; ++i) {
    const std::string file = mutated(i % 2 == 0 ? small_json() : split, random);
    try {
      const BpeTokenizer tokenizer({.path = "t.json", .json = file, .config = ""});
      const std::string back = text_of(tokenizer, ids_of(tokenizer, text));
      if (back != text) {
        INFO(file);
        CHECK(back == text);
      }
      ++n_read;
    } catch (const DataError& error) {
      const std::string message = error.what();
      const bool names_file = message.starts_with("t.json: ");
      if (!names_file || message.size() > 700) {
        INFO(file);
        CHECK(message == "");
      }
    }
  }
  std::cout << "tokenizer.json: " << n_inputs << " mutated files, " << n_read << " of them read\n";
  CHECK(n_read > n_inputs / 100);
}

}  // namespace llm::test
