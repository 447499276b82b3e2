#include "src/data/tokenizer_json.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "tests/data/tokenizers.h"

namespace llm::test {
namespace {

std::string refusal_of_text(const std::string& json, const std::string& config = "") {
  return message_of<DataError>(
      [&] { BpeTokenizer({.path = "t.json", .json = json, .config = config}); });
}

std::string refusal(const Json& json, const std::string& config = "") {
  return refusal_of_text(json.dump(), config);
}

struct Wrong {
  const char* what;
  const char* pointer;  ///< of the value that is replaced
  Json value;
  std::string message;  ///< how it begins
};

const Json removed = "REMOVED";

const std::vector<Wrong> wrongs = {
    {"no model", "/model", removed, "t.json: model: is missing; an object is expected"},
    {"another model", "/model/type", "Unigram", "t.json: model.type: \"Unigram\" is not \"BPE\"; "},
    {"a list for the vocabulary", "/model/vocab", Json::array(),
     "t.json: model.vocab: is array, and not an object"},
    {"an empty vocabulary", "/model/vocab", Json::object(), "t.json: model.vocab: is empty"},
    {"no vocabulary", "/model/vocab", removed, "t.json: model.vocab: is missing"},
    {"an id that is text", "/model/vocab/he", "7",
     "t.json: model.vocab[\"he\"]: is string, and not an id"},
    {"a negative id", "/model/vocab/he", -7,
     "t.json: model.vocab[\"he\"]: -7 is no id; 0 to 2147483647 are"},
    {"an id of 2^31", "/model/vocab/he", 2147483648LL,
     "t.json: model.vocab[\"he\"]: 2147483648 is no id"},
    {"an id with a fraction", "/model/vocab/he", 1.5,
     "t.json: model.vocab[\"he\"]: is number, and not an id"},
    {"an id twice", "/model/vocab/he", 65, "t.json: model.vocab[\"he\"]: id 65 is that of \"A\""},
    {"an id far away", "/model/vocab/he", 1000000,
     "t.json: model.vocab[\"he\"]: id 1000000 is far beyond the 260 tokens of the file"},
    {"an empty token", "/model/vocab/", 260, "t.json: model.vocab[\"\"]: the empty text is no"},
    {"a byte without a token", "/model/vocab/A", removed,
     "t.json: model.vocab: has no token \"A\" for byte 0x41"},
    {"no merges", "/model/merges", removed, "t.json: model.merges: is missing; a list is expected"},
    {"a merge of one token", "/model/merges/1", "he",
     "t.json: model.merges[1]: \"he\" is not two tokens with a blank between"},
    {"a merge of three tokens", "/model/merges/1", "h e l",
     "t.json: model.merges[1]: \"h e l\" is not two tokens"},
    {"a merge that begins with a blank", "/model/merges/1", " he",
     "t.json: model.merges[1]: \" he\" is not two tokens"},
    {"a merge of three parts",
     "/model/merges/1",
     {"h", "e", "l"},
     "t.json: model.merges[1]: has 3 parts, and not 2"},
    {"a merge of a number", "/model/merges/1", 7, "t.json: model.merges[1]: is number, and not a"},
    {"a merge of a number within",
     "/model/merges/1",
     {"h", 7},
     "t.json: model.merges[1][1]: is number, and not a text"},
    {"a merge of no token", "/model/merges/1", "he llo",
     "t.json: model.merges[1]: \"llo\" is not in model.vocab"},
    {"a merge into no token", "/model/merges/1", "e h",
     "t.json: model.merges[1]: \"eh\" is not in model.vocab"},
    {"a merge twice", "/model/merges/2", "h e", "t.json: model.merges[2]: repeats merge 1"},
    {"byte_fallback", "/model/byte_fallback", true, "t.json: model.byte_fallback: true is for"},
    {"dropout", "/model/dropout", 0.1, "t.json: model.dropout: \"0.1\" makes ids random"},
    {"an affix", "/model/end_of_word_suffix", "</w>",
     "t.json: model.end_of_word_suffix: \"</w>\" is not read"},
    {"a flag that is none", "/model/ignore_merges", 1,
     "t.json: model.ignore_merges: is number, and not true or false"},
    {"a normalizer",
     "/normalizer",
     {{"type", "NFC"}},
     "t.json: normalizer: \"NFC\" changes text before it is split"},
    {"another decoder", "/decoder/type", "Metaspace",
     "t.json: decoder: \"Metaspace\" is not ByteLevel"},
    {"no pre-tokenizer", "/pre_tokenizer", removed, "t.json: pre_tokenizer: is missing"},
    {"a pre-tokenizer without bytes",
     "/pre_tokenizer",
     {{"type", "Digits"}},
     "t.json: pre_tokenizer: has no ByteLevel"},
    {"an unknown pre-tokenizer", "/pre_tokenizer/type", "Metaspace",
     "t.json: pre_tokenizer: \"Metaspace\" is not ByteLevel, Split, Digits"},
    {"a space before text", "/pre_tokenizer/add_prefix_space", true,
     "t.json: pre_tokenizer.add_prefix_space: true puts a space before text"},
    {"a split that drops text",
     "/pre_tokenizer",
     {{"type", "Split"}, {"behavior", "Removed"}, {"pattern", {{"Regex", "a"}}}},
     "t.json: pre_tokenizer.behavior: \"Removed\" is not read, only \"Isolated\""},
    {"a split of both kinds",
     "/pre_tokenizer",
     {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "a"}, {"String", "b"}}}},
     "t.json: pre_tokenizer.pattern: has not exactly one of"},
    {"a split by no regular expression",
     "/pre_tokenizer",
     {{"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(a"}}}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}},
     "t.json: pre_tokenizer.pretokenizers[0].pattern.Regex: the pattern is no regular expression"},
    {"an added token without text", "/added_tokens/0/content", removed,
     "t.json: added_tokens[0].content: is missing; a text is expected"},
    {"an empty added token", "/added_tokens/0/content", "",
     "t.json: added_tokens[0].content: is empty"},
    {"an added token with another's id", "/added_tokens/0/id", 258,
     "t.json: added_tokens[0].id: id 258 is that of \" the\" already"},
    {"an added token with two ids", "/model/vocab/<|endoftext|>", 260,
     "t.json: added_tokens[0].id: \"<|endoftext|>\" has id 259 here and 260 in model.vocab"},
    {"a token of whole words", "/added_tokens/0/single_word", true,
     "t.json: added_tokens[0].single_word: true is not read"},
    {"a token of text that takes space",
     "/added_tokens/1",
     {{"id", 260}, {"content", "<x>"}, {"lstrip", true}},
     "t.json: added_tokens[1]: \"<x>\" takes the space beside it"},
    {"an added token twice",
     "/added_tokens/1",
     {{"id", 260}, {"content", "<|endoftext|>"}},
     "t.json: added_tokens[1].content: \"<|endoftext|>\" is added twice"},
    {"no token that ends documents", "/added_tokens", Json::array(),
     "t.json: which of its 0 special tokens ends a document is not known"},
};

Json with(const Wrong& wrong) {
  Json json = small_json();
  const Json::json_pointer pointer(wrong.pointer);
  if (wrong.value == removed) {
    json[pointer.parent_pointer()].erase(pointer.back());
  } else {
    json[pointer] = wrong.value;
  }
  return json;
}

}  // namespace

TEST_CASE("a tokenizer.json is refused with the place of what is wrong") {
  REQUIRE(refusal(small_json()) == "nothing thrown");
  for (const Wrong& wrong : wrongs) {
    INFO(wrong.what);
    const std::string message = refusal(with(wrong));
    CHECK(message.substr(0, wrong.message.size()) == wrong.message);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("text that is no JSON is refused with the byte") {
  CHECK(has(refusal_of_text(""), "t.json: is not valid JSON: "));
  CHECK(has(refusal_of_text("{\"a\": }"), "(byte 7)"));
  CHECK(has(refusal_of_text("[]"), "t.json: is array, and not a tokenizer's object"));
  CHECK(has(refusal_of_text("{\"a\": \"\\ud800\"}"), "t.json: is not valid JSON: "));
  CHECK(has(refusal_of_text("{\"a\": \"\xff\"}"), "t.json: is not valid JSON: "));
  CHECK(has(refusal_of_text("{\"a\": 1e999}"), "t.json: is not valid JSON: "));
  CHECK(has(refusal_of_text(std::string(100000, '[')), "t.json: JSON is nested 65 deep"));
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "{\"a\":";
  CHECK(has(refusal_of_text(deep), "t.json: JSON is nested 65 deep; 64 levels are the most"));
}

TEST_CASE("a name twice in one object is refused, which JSON readers pass over") {
  std::string text = small_json().dump();
  text.insert(text.find("\"he\":"), "\"he\":300,");
  CHECK(refusal_of_text(text) == "t.json: the name \"he\" stands twice in one object");
}

TEST_CASE("the end token is the configured one, a usual name, or the only special token") {
  Json json = small_json();
  json["added_tokens"].push_back({{"id", 260}, {"content", "<a>"}, {"special", true}});
  const auto end = [](const Json& file, const std::string& config) {
    return tokenizer_of(file, config).end_id();
  };
  CHECK(end(json, "") == 259);
  CHECK(end(json, R"({"eos_token": "<a>"})") == 260);
  CHECK(end(json, R"({"eos_token": null})") == 259);
  json["added_tokens"][0]["content"] = "<b>";
  CHECK(has(refusal(json), "which of its 2 special tokens ends a document is not known"));
  json["added_tokens"].erase(0);
  CHECK(end(json, "") == 260);
  CHECK(has(refusal(json, R"({"eos_token": "<b>"})"), "t.json: has no added token \"<b>\""));
  CHECK(has(refusal(json, "{"), "the tokenizer_config.json beside t.json: is not valid JSON"));
  CHECK(has(refusal(json, R"({"eos_token": 7})"),
            "the tokenizer_config.json beside t.json: eos_token: is number, and not a text"));
}

TEST_CASE("merges as pairs and as texts give one tokenizer") {
  Json pairs = small_json();
  pairs["model"]["merges"] =
      Json::array({Json::array({"Ġ", "t"}), Json::array({"h", "e"}), Json::array({"Ġt", "he"})});
  CHECK(ids_of(tokenizer_of(pairs), "see the") == ids_of(tokenizer_of(small_json()), "see the"));
}

}  // namespace llm::test
