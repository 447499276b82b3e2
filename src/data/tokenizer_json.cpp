#include "src/data/tokenizer_json.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "src/base/error.h"
#include "src/base/strict_json.h"
#include "src/data/byte_level.h"

namespace llm {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_file_bytes = std::size_t{256} << 20;  // Gemma's, a large one, has 33 MB
constexpr int max_depth = 64;
constexpr std::size_t max_token_bytes = 64 * 1024;
constexpr std::int64_t max_unused_ids = 4096;  // beyond as many again as there are tokens
const char* const way_out =
    "byte-level BPE as GPT-2 and Llama 3 have it is read; tokenize with the tokenizer's own tools "
    "into .bin files";

Json parse(std::string_view text, const std::string& path) {
  if (text.size() > max_file_bytes) {
    throw DataError(
        fmt::format("{}: has {} bytes; {} are the most", path, text.size(), max_file_bytes));
  }
  return parse_strict_json(text, path, max_depth);
}

/// A value in the file and where it stands: every getter refuses what it does not get.
class Node {
 public:
  Node(const Json& value, std::string place) : value_(value), place_(std::move(place)) {}

  [[noreturn]] void refuse(const std::string& why) const { throw DataError(place_ + ": " + why); }
  const Json& json() const { return value_; }
  const std::string& place() const { return place_; }
  bool is_null() const { return value_.is_null(); }

  const Node& object() const { return expect(value_.is_object(), "an object"); }
  const Node& array() const { return expect(value_.is_array(), "a list"); }
  const std::string& text() const {
    expect(value_.is_string(), "a text");
    return value_.get_ref<const std::string&>();
  }
  bool boolean() const {
    expect(value_.is_boolean(), "true or false");
    return value_.get<bool>();
  }
  std::int32_t id() const {
    expect(value_.is_number_integer(), "an id");
    constexpr std::uint64_t max_id = (std::uint64_t{1} << 31) - 1;
    const bool fits = value_.is_number_unsigned() && value_.get<std::uint64_t>() <= max_id;
    if (!fits) refuse(fmt::format("{} is no id; 0 to {} are", value_.dump(), max_id));
    return value_.get<std::int32_t>();
  }

  /// null where the field is missing.
  Node operator[](const char* name) const {
    static const Json null;
    object();
    const auto found = value_.find(name);
    return {found == value_.end() ? null : *found, place_ + inner(name)};
  }
  Node at(std::size_t index) const {
    return {value_.at(index), fmt::format("{}[{}]", place_, index)};
  }
  /// For a value whose place is worked out only for a message.
  Node named(const Json& value, std::string_view name) const {
    return {value, fmt::format("{}[{}]", place_, in_quotes(name))};
  }
  /// False where it is missing or null.
  bool flag(const char* name) const {
    const Node field = (*this)[name];
    return !field.is_null() && field.boolean();
  }
  std::size_t size() const { return value_.size(); }

 private:
  const Node& expect(bool holds, const char* what) const {
    if (!holds) {
      refuse(value_.is_null() ? fmt::format("is missing; {} is expected", what)
                              : fmt::format("is {}, and not {}", value_.type_name(), what));
    }
    return *this;
  }
  std::string inner(const char* name) const {
    return place_.ends_with(": ") ? name : std::string(".") + name;
  }

  const Json& value_;
  std::string place_;
};

class Reader {
 public:
  Reader(std::string_view json, std::string_view config, const std::string& path)
      : path_(path), json_(parse(json, path)), root_(json_, path + ": "), config_(config) {}

  BpeSpec run() {
    if (!json_.is_object()) {
      throw DataError(
          fmt::format("{}: is {}, and not a tokenizer's object", path_, json_.type_name()));
    }
    check_normalizer();
    check_decoder();
    read_pre_tokenizer(root_["pre_tokenizer"]);
    const Node model = root_["model"].object();
    check_model(model);
    n_tokens_ =
        static_cast<std::int64_t>(model["vocab"].object().size() + root_["added_tokens"].size());
    read_vocab(model["vocab"]);
    read_added();
    check_bytes();
    read_merges(model["merges"].array());
    find_end();
    return std::move(spec_);
  }

 private:
  void check_normalizer() const {
    const Node normalizer = root_["normalizer"];
    if (normalizer.is_null()) return;
    const std::string& type = normalizer["type"].text();
    if (type == "Sequence" && normalizer["normalizers"].array().size() == 0) return;
    normalizer.refuse(
        fmt::format("{} changes text before it is split; {}", in_quotes(type), way_out));
  }

  void check_decoder() const {
    const Node decoder = root_["decoder"];
    if (decoder.is_null()) return;
    const std::string& type = decoder["type"].text();
    if (type != "ByteLevel") {
      decoder.refuse(fmt::format("{} is not ByteLevel; {}", in_quotes(type), way_out));
    }
  }

  void read_pre_tokenizer(const Node& node) {
    if (node.is_null()) node.refuse(fmt::format("is missing; {}", way_out));
    bool has_byte_level = false;
    const auto read_one = [&](const Node& part) {
      const std::string& type = part["type"].text();
      if (has_byte_level) part.refuse("stands behind ByteLevel, which must be the last");
      if (type == "ByteLevel") {
        has_byte_level = true;
        read_byte_level(part);
      } else if (type == "Split") {
        read_split(part);
      } else if (type == "Digits") {
        add_split(part, {part.flag("individual_digits") ? "\\p{N}" : "\\p{N}+", false});
      } else {
        part.refuse(fmt::format("{} is not ByteLevel, Split, Digits or a Sequence of them; {}",
                                in_quotes(type), way_out));
      }
    };
    if (node["type"].text() == "Sequence") {
      const Node parts = node["pretokenizers"].array();
      for (std::size_t i = 0; i < parts.size(); ++i) read_one(parts.at(i));
    } else {
      read_one(node);
    }
    if (!has_byte_level) node.refuse(fmt::format("has no ByteLevel; {}", way_out));
  }

  void read_byte_level(const Node& node) {
    if (node["add_prefix_space"].boolean()) {
      node["add_prefix_space"].refuse(
          "true puts a space before text that has none, so that text does not come back as it was; "
          "write false");
    }
    const Node use_regex = node["use_regex"];
    if (use_regex.is_null() || use_regex.boolean()) add_split(node, {gpt2_pattern, false});
  }

  void read_split(const Node& node) {
    const std::string& behavior = node["behavior"].text();
    if (behavior != "Isolated") {
      node["behavior"].refuse(
          fmt::format("{} is not read, only \"Isolated\"; {}", in_quotes(behavior), way_out));
    }
    node.flag("invert");  // of Isolated, matches and what lies between are alike
    const Node pattern = node["pattern"].object();
    const bool is_literal = !pattern["String"].is_null();
    if (is_literal == !pattern["Regex"].is_null()) {
      pattern.refuse("has not exactly one of \"Regex\" and \"String\"");
    }
    const Node text = pattern[is_literal ? "String" : "Regex"];
    add_split(text, {text.text(), is_literal});
  }

  void add_split(const Node& node, SplitRule rule) {
    spec_.splits.push_back(std::move(rule));
    spec_.places.push_back(node.place());
  }

  void check_model(const Node& model) {
    const Node type = model["type"];
    if (!type.is_null() && type.text() != "BPE") {
      type.refuse(fmt::format("{} is not \"BPE\"; {}", in_quotes(type.text()), way_out));
    }
    const auto refuse_flag = [&](const char* name, const char* why) {
      if (model.flag(name)) model[name].refuse(fmt::format("{}; {}", why, way_out));
    };
    refuse_flag("byte_fallback",
                "true is for vocabularies of characters, where bytes are tokens as <0x0A>");
    const Node dropout = model["dropout"];
    if (!dropout.is_null() && !(dropout.json().is_number() && dropout.json() == 0)) {
      dropout.refuse(
          fmt::format("{} makes ids random; write null", in_quotes(dropout.json().dump())));
    }
    for (const char* const name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Node affix = model[name];
      if (!affix.is_null() && !affix.text().empty()) {
        affix.refuse(fmt::format("{} is not read; {}", in_quotes(affix.text()), way_out));
      }
    }
    spec_.ignores_merges = model.flag("ignore_merges");
  }

  void read_vocab(const Node& vocab) {
    ids_.reserve(vocab.size());
    for (const auto& [token, value] : vocab.json().items()) {
      const std::int32_t id = value.is_number_unsigned() && value.get<std::uint64_t>() < 1 << 30
                                  ? value.get<std::int32_t>()
                                  : vocab.named(value, token).id();
      std::optional<std::string> bytes = bytes_of_token(token);
      const bool is_spelled = bytes.has_value();
      const auto refuse = [&](const std::string& why) { vocab.named(value, token).refuse(why); };
      if (token.empty()) refuse("the empty text is no token");
      if (token.size() > max_token_bytes) refuse("the token is too long");
      put(id, {is_spelled ? std::move(*bytes) : token, is_spelled}, refuse);
      ids_.emplace(token, id);
    }
    if (ids_.empty()) vocab.refuse("is empty");
  }

  /// A token to its id; ids far beyond the number of tokens would only take memory.
  template <class Refuse>
  void put(std::int32_t id, BpeSpec::Token token, const Refuse& refuse) {
    if (id >= 2 * n_tokens_ + max_unused_ids) {
      refuse(fmt::format("id {} is far beyond the {} tokens of the file", id, n_tokens_));
    }
    const auto index = static_cast<std::size_t>(id);
    if (index >= spec_.tokens.size()) spec_.tokens.resize(index + 1);
    if (!spec_.tokens[index].bytes.empty()) {
      refuse(fmt::format("id {} is that of {} already", id, in_quotes(spec_.tokens[index].bytes)));
    }
    spec_.tokens[index] = std::move(token);
  }

  void read_added() {
    const Node list = root_["added_tokens"];
    if (list.is_null()) return;
    list.array();
    std::unordered_set<std::string> seen;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Node node = list.at(i);
      AddedToken token{.id = node["id"].id(),
                       .text = node["content"].text(),
                       .is_special = node.flag("special"),
                       .is_normalized = node.flag("normalized"),
                       .takes_space_before = node.flag("lstrip"),
                       .takes_space_after = node.flag("rstrip")};
      if (token.text.empty()) node["content"].refuse("is empty");
      if (token.text.size() > max_token_bytes) node["content"].refuse("is too long");
      if (!seen.insert(token.text).second) {
        node["content"].refuse(in_quotes(token.text) + " is added twice");
      }
      if (node.flag("single_word")) node["single_word"].refuse("true is not read; write false");
      if (!token.is_special && (token.takes_space_before || token.takes_space_after)) {
        node.refuse(in_quotes(token.text) +
                    " takes the space beside it (lstrip, rstrip), so that text does not come back "
                    "as it was; write false");
      }
      put_added(node, token);
      spec_.added.push_back(std::move(token));
    }
  }

  void put_added(const Node& node, const AddedToken& token) {
    const auto in_vocab = ids_.find(token.text);
    if (in_vocab == ids_.end()) {
      put(token.id, {token.text, false}, [&](const std::string& why) { node["id"].refuse(why); });
    } else if (in_vocab->second != token.id) {
      node["id"].refuse(fmt::format("{} has id {} here and {} in model.vocab",
                                    in_quotes(token.text), token.id, in_vocab->second));
    } else if (spec_.tokens[static_cast<std::size_t>(token.id)].bytes != token.text) {
      node["content"].refuse(fmt::format("{} is a token of model.vocab that stands for other bytes",
                                         in_quotes(token.text)));
    }
  }

  void check_bytes() const {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token = token_of_bytes(std::string(1, static_cast<char>(byte)));
      if (!ids_.contains(token)) {
        root_["model"]["vocab"].refuse(
            fmt::format("has no token {} for byte 0x{:02X}: not every text could be encoded; "
                        "train it with all 256 (initial_alphabet)",
                        in_quotes(token), byte));
      }
    }
  }

  void read_merges(const Node& merges) {
    std::unordered_map<std::uint64_t, std::size_t> seen;
    seen.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const auto [left, right] = parts_of(merges.json().at(i), merges, i);
      const auto id_of = [&](const std::string& token) {
        const auto found = ids_.find(token);
        if (found == ids_.end()) merges.at(i).refuse(in_quotes(token) + " is not in model.vocab");
        return found->second;
      };
      const Merge merge{.left = id_of(left), .right = id_of(right), .merged = id_of(left + right)};
      for (const std::int32_t id : {merge.left, merge.right}) {
        if (!spec_.tokens[static_cast<std::size_t>(id)].is_spelled) {
          merges.at(i).refuse("merges a token that is not of byte-level's alphabet");
        }
      }
      const std::uint64_t pair = std::uint64_t{static_cast<std::uint32_t>(merge.left)} << 32 |
                                 static_cast<std::uint32_t>(merge.right);
      if (const auto [first, is_new] = seen.emplace(pair, i); !is_new) {
        merges.at(i).refuse(fmt::format("repeats merge {}", first->second));
      }
      spec_.merges.push_back(merge);
    }
  }

  static std::pair<std::string, std::string> parts_of(const Json& merge, const Node& merges,
                                                      std::size_t i) {
    if (merge.is_array()) {
      const Node node = merges.at(i);
      if (merge.size() != 2) node.refuse(fmt::format("has {} parts, and not 2", merge.size()));
      return {node.at(0).text(), node.at(1).text()};
    }
    const std::string& both =
        merge.is_string() ? merge.get_ref<const std::string&>() : merges.at(i).text();
    const std::size_t blank = both.find(' ');
    const bool is_pair = blank != std::string::npos && blank > 0 && blank + 1 < both.size() &&
                         both.find(' ', blank + 1) == std::string::npos;
    if (!is_pair) merges.at(i).refuse(in_quotes(both) + " is not two tokens with a blank between");
    return {both.substr(0, blank), both.substr(blank + 1)};
  }

  void find_end() {
    std::string wanted = configured_end();
    std::vector<const AddedToken*> special;
    for (const AddedToken& token : spec_.added) {
      if (token.is_special) special.push_back(&token);
      if (token.text == wanted) spec_.end_id = token.id;
    }
    if (!wanted.empty()) {
      if (spec_.end_id < 0) {
        throw DataError(
            fmt::format("{}: has no added token {}, which is the eos_token of the "
                        "tokenizer_config.json beside it",
                        path_, in_quotes(wanted)));
      }
      return;
    }
    for (const char* const name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
      for (const AddedToken* token : special) {
        if (spec_.end_id < 0 && token->text == name) spec_.end_id = token->id;
      }
    }
    if (spec_.end_id < 0 && special.size() == 1) spec_.end_id = special.front()->id;
    if (spec_.end_id < 0) {
      throw DataError(fmt::format(
          "{}: which of its {} special tokens ends a document is not known; name it in a "
          "tokenizer_config.json beside the file: {{\"eos_token\": \"<|endoftext|>\"}}",
          path_, special.size()));
    }
  }

  /// The eos_token of tokenizer_config.json, a text or an object with its content; or "".
  std::string configured_end() const {
    if (config_.empty()) return "";
    const std::string path = "the tokenizer_config.json beside " + path_;
    const Json config = parse(config_, path);
    const Node end = Node(config, path + ": ")["eos_token"];
    if (end.is_null()) return "";
    return end.json().is_object() ? end["content"].text() : end.text();
  }

  const std::string& path_;
  const Json json_;
  const Node root_;
  std::string_view config_;
  BpeSpec spec_;
  std::int64_t n_tokens_ = 0;
  std::unordered_map<std::string, std::int32_t> ids_;  // of model.vocab
};

}  // namespace

BpeSpec read_tokenizer_json(std::string_view json, std::string_view config,
                            const std::string& path) {
  return Reader(json, config, path).run();
}

}  // namespace llm
