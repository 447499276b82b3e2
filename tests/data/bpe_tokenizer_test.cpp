#include "src/data/bpe_tokenizer.h"

#include <catch2/catch.hpp>
#include <random>

#include "src/base/error.h"
#include "tests/data/tokenizers.h"

namespace llm::test {
namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const std::vector<std::string> kinds = {"gpt2", "llama3"};

/// Bytes of which many are no UTF-8, with tokens' spellings among them.
std::string random_bytes(std::mt19937& random, std::size_t n) {
  const std::vector<std::string> parts = {"a",
                                          "the",
                                          " the",
                                          "  ",
                                          "\n",
                                          "'s",
                                          "12",
                                          "é",
                                          "日本",
                                          "\xff",
                                          "\xe6\x97",
                                          "<tool>",
                                          "<tool> <tool>",
                                          "<|endoftext|>",
                                          "<",
                                          "<tool",
                                          " ",
                                          "!"};
  std::string text;
  while (text.size() < n) {
    text += random() % 8 == 0 ? std::string(1, static_cast<char>(random()))
                              : parts[random() % parts.size()];
  }
  return text;
}

/// Looks for the merge of the lowest rank and applies it to its leftmost pair, until there is none.
Ids merged_by_definition(const BpeSpec& spec, const std::string& word) {
  Ids ids;
  for (const char byte : word) {
    const auto is_byte = [&](const BpeSpec::Token& t) { return t.bytes == std::string(1, byte); };
    const auto found = std::find_if(spec.tokens.begin(), spec.tokens.end(), is_byte);
    ids.push_back(static_cast<std::int32_t>(found - spec.tokens.begin()));
  }
  for (std::size_t rank = 0; rank < spec.merges.size();) {
    const Merge& merge = spec.merges[rank++];
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
      ids[i] = merge.merged;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      rank = 0;  // what it made may have a lower one
    }
  }
  return ids;
}

}  // namespace

TEST_CASE("ids are those of an independent implementation") {
  for (const std::string& kind : kinds) {
    const BpeTokenizer tokenizer = golden_tokenizer(kind);
    for (const Json& vector : golden_json("tokenizer_" + kind + "_vectors.json")) {
      const std::string text = from_hex(vector["hex"]);
      INFO(kind << ": " << text);
      CHECK(ids_of(tokenizer, text) == vector["ids"].get<Ids>());
      CHECK(text_of(tokenizer, ids_of(tokenizer, text)) == text);
      if (vector["special"].is_null()) continue;
      Ids special;
      tokenizer.encode_with_special(text, special);
      CHECK(special == vector["special"].get<Ids>());
    }
  }
}

TEST_CASE("every byte string comes back as it was") {
  std::mt19937 random(3);
  for (const std::string& kind : kinds) {
    const BpeTokenizer tokenizer = golden_tokenizer(kind);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_bytes(random, random() % 100);
      REQUIRE(text_of(tokenizer, ids_of(tokenizer, text)) == text);
    }
  }
}

TEST_CASE("<|endoftext|> in text is plain text unless special tokens are asked for") {
  const BpeTokenizer tokenizer = tokenizer_of(small_json());
  const std::string text = "a<|endoftext|>";
  const Ids plain = ids_of(tokenizer, text);
  CHECK(plain.size() == text.size());
  CHECK(std::find(plain.begin(), plain.end(), tokenizer.end_id()) == plain.end());
  Ids special;
  tokenizer.encode_with_special(text, special);
  CHECK(special.size() == 2);
  CHECK(special.back() == tokenizer.end_id());
  CHECK(text_of(tokenizer, special) == text);
}

TEST_CASE("where merges are ignored a special token's spelling still is plain text") {
  Json json = small_json();
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["stop"] = 260;
  json["model"]["vocab"]["go"] = 261;
  json["added_tokens"].push_back({{"id", 260}, {"content", "stop"}, {"special", true}});
  const BpeTokenizer tokenizer = tokenizer_of(json);
  CHECK(ids_of(tokenizer, "stop").size() == 4);
  CHECK(ids_of(tokenizer, "go") == Ids{261});
}

TEST_CASE("without ignore_merges a token that no merge makes is not used") {
  Json json = small_json();
  json["model"]["vocab"]["go"] = 260;
  CHECK(ids_of(tokenizer_of(json), "go").size() == 2);
}

TEST_CASE("text cut at a safe prefix gives the ids of the whole") {
  std::mt19937 random(4);
  std::vector<Json> files;
  for (const std::string& kind : kinds) files.push_back(golden_json("tokenizer_" + kind + ".json"));
  Json with_pattern = small_json();
  with_pattern["added_tokens"].push_back({{"id", 260}, {"content", " the tool"}});
  with_pattern["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  files.push_back(with_pattern);
  for (const Json& file : files) {
    const BpeTokenizer tokenizer = tokenizer_of(file);
    int n_cut = 0;
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_bytes(random, 60);
      const std::string first = text.substr(0, 20 + random() % 30);
      const std::size_t n = tokenizer.safe_prefix(first);
      REQUIRE(n <= first.size());
      n_cut += n > 0;
      Ids ids = ids_of(tokenizer, text.substr(0, n));
      tokenizer.encode(text.substr(n), ids);
      if (ids != ids_of(tokenizer, text)) {
        INFO(first << "$" << text.substr(first.size()) << " at " << n);
        CHECK(ids == ids_of(tokenizer, text));
      }
    }
    CHECK(n_cut > 1500);
  }
}

TEST_CASE("long pieces take no more than n log n") {
  const BpeTokenizer tokenizer = golden_tokenizer("llama3");
  for (const char* const unit : {"a", "the", "日", "=", "\xff"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    CHECK(text_of(tokenizer, ids_of(tokenizer, text)) == text);
  }
}

TEST_CASE("short and long pieces are merged as the definition says") {
  const Json json = golden_json("tokenizer_gpt2.json");
  const BpeTokenizer tokenizer = tokenizer_of(json);
  const BpeSpec spec = read_tokenizer_json(json.dump(), "", "t.json");
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string word;
    const std::size_t n = 1 + random() % 150;
    while (word.size() < n) word += "therasingodl"[random() % 12];
    CHECK(ids_of(tokenizer, word) == merged_by_definition(spec, word));
  }
}

TEST_CASE("ids outside the tokenizer are not decoded, and one between its ids stands for nothing") {
  Json json = small_json();
  json["added_tokens"][0]["id"] = 300;
  const BpeTokenizer tokenizer = tokenizer_of(json);
  CHECK(tokenizer.n_ids() == 301);
  CHECK(text_of(tokenizer, {97, 299, 98}) == "ab");
  for (const std::int32_t id : {-1, 301}) {
    CHECK(has(message_of<DataError>([&] { text_of(tokenizer, {id}); }),
              "token id " + std::to_string(id) + " is none of the 301 ids of the tokenizer bpe-"));
  }
}

TEST_CASE("a tokenizer's name follows its file and its end token") {
  Json json = small_json();
  const std::string name = tokenizer_of(json).name();
  CHECK(name == tokenizer_of(json).name());
  json["model"]["merges"].erase(2);
  CHECK(name != tokenizer_of(json).name());
  Json two = small_json();
  two["added_tokens"].push_back({{"id", 260}, {"content", "<|eot|>"}, {"special", true}});
  const BpeTokenizer other_end = tokenizer_of(two, R"({"eos_token": {"content": "<|eot|>"}})");
  CHECK(other_end.end_id() == 260);
  CHECK(tokenizer_of(two).end_id() == 259);
  CHECK(other_end.name() != tokenizer_of(two).name());
}

TEST_CASE("a folder with tokenizer.json is read as its file is, with the configuration beside it") {
  const TempFolder folder;
  folder.write("a/tokenizer.json", small_json().dump());
  folder.write("a/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const TokenizerFiles by_folder = read_tokenizer_files(folder / "a");
  const TokenizerFiles by_file = read_tokenizer_files(folder / "a/tokenizer.json");
  CHECK(by_folder.json == by_file.json);
  CHECK(by_folder.path == by_file.path);
  CHECK(by_folder.config == R"({"eos_token": "<|endoftext|>"})");
  CHECK(has(message_of<FileError>([&] { read_tokenizer_files(folder / "none"); }), "none"));
}

}  // namespace llm::test
