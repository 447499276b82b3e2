#include "src/config/yaml_source.h"

#include <fmt/format.h>
#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <sstream>

#include "src/base/error.h"

namespace llm {
namespace {

/// Takes the parser's events instead of its node tree: the tree keeps the first of two equal keys,
/// forgets quotes and shares aliased nodes, and all of these have to be seen here.
class EntryReader : public YAML::EventHandler {
 public:
  explicit EntryReader(const std::string& name) : name_(escaped(name)) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++n_documents_ > 1) {
      fail(place(mark), "a second document; a configuration is one document");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    take({.form = RawValue::Form::null, .text = "", .items = {}}, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(place(mark), "an alias (*name); write the value itself");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    const bool is_plain = tag != "!";
    take({.form = is_plain ? RawValue::Form::plain : RawValue::Form::quoted,
          .text = value,
          .items = {}},
         mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, false);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, true);
  }
  void OnMapEnd() override { close(); }

  YamlEntries take_entries() { return std::move(out_); }

 private:
  /// What the next event stands for.
  enum class Expect { root, section_key, section_value, field_key, field_value, item, ignored };

  [[noreturn]] static void fail(const Place& place, const std::string& problem) {
    throw ConfigError(place + ": " + problem);
  }
  Place place(const YAML::Mark& mark) const {
    return fmt::format("{}:{}:{}", name_, mark.line + 1, mark.column + 1);
  }
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) {
      fail(place(mark), "an anchor (&name); write the value itself where it is needed");
    }
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(place(mark), "the tag " + printable(tag) + "; write the value without a tag");
    }
  }

  void take(RawValue value, const YAML::Mark& mark) {
    switch (expect_) {
      case Expect::root:
        if (value.form == RawValue::Form::null) return;
        fail(place(mark), "a configuration is a map of sections, as \"model:\"");
      case Expect::section_key:
        return take_section(value, mark);
      case Expect::section_value:
        if (value.form != RawValue::Form::null) {
          out_.sections.back().wrong_value_place = place(mark);
        }
        expect_ = Expect::section_key;
        return;
      case Expect::field_key:
        return take_field(value, mark);
      case Expect::field_value:
        out_.entries.back().value = std::move(value);
        out_.entries.back().value_place = place(mark);
        expect_ = Expect::field_key;
        return;
      case Expect::item: {
        RawValue& list = out_.entries.back().value;
        if (value.form == RawValue::Form::null) list.form = RawValue::Form::nested;
        list.items.push_back(std::move(value.text));
        return;
      }
      case Expect::ignored:
        return;
    }
  }

  void take_section(const RawValue& key, const YAML::Mark& mark) {
    check_key(key, mark);
    const auto [first, is_first] = places_.emplace(key.text, place(mark));
    if (!is_first) {
      fail(place(mark), printable(key.text) + ": a second section of this name; the first is at " +
                            first->second);
    }
    section_ = key.text;
    out_.sections.push_back({section_, place(mark), ""});
    expect_ = Expect::section_value;
  }

  void take_field(const RawValue& key, const YAML::Mark& mark) {
    check_key(key, mark);
    const std::string path = section_ + "." + key.text;
    const auto [first, is_first] = places_.emplace(path, place(mark));
    if (!is_first) {
      fail(place(mark), printable(path) + ": set twice; the first is at " + first->second);
    }
    out_.entries.push_back({section_, key.text, {}, place(mark), place(mark)});
    expect_ = Expect::field_value;
  }

  void check_key(const RawValue& key, const YAML::Mark& mark) const {
    if (key.form == RawValue::Form::null) fail(place(mark), "a key without a name");
    if (key.text == "<<") {
      fail(place(mark), "a merge key (<<); write the fields themselves");
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, bool is_map) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    const Expect outer = expect_;
    switch (expect_) {
      case Expect::root:
        if (!is_map) fail(place(mark), "a configuration is a map of sections, as \"model:\"");
        expect_ = Expect::section_key;
        break;
      case Expect::section_value:
        if (!is_map) out_.sections.back().wrong_value_place = place(mark);
        expect_ = is_map ? Expect::field_key : Expect::ignored;
        break;
      case Expect::section_key:
      case Expect::field_key:
        fail(place(mark), "a key must be a plain name");
      case Expect::field_value:
        out_.entries.back().value.form = is_map ? RawValue::Form::nested : RawValue::Form::list;
        out_.entries.back().value_place = place(mark);
        expect_ = is_map ? Expect::ignored : Expect::item;
        break;
      case Expect::item:
        out_.entries.back().value.form = RawValue::Form::nested;
        expect_ = Expect::ignored;
        break;
      case Expect::ignored:
        break;
    }
    outer_.push_back(outer);
  }

  void close() {
    const Expect outer = outer_.back();
    outer_.pop_back();
    switch (outer) {
      case Expect::section_value:
        expect_ = Expect::section_key;
        break;
      case Expect::field_value:
        expect_ = Expect::field_key;
        break;
      default:
        expect_ = outer;
    }
  }

  std::string name_;
  YamlEntries out_;
  Expect expect_ = Expect::root;
  std::vector<Expect> outer_;
  std::string section_;
  std::map<std::string, Place> places_;
  int n_documents_ = 0;
};

}  // namespace

YamlEntries read_yaml(const std::string& name, const std::string& text) {
  if (text.size() > yaml_bytes_max) {
    throw ConfigError(fmt::format("{}: {} bytes; a configuration has at most {}", escaped(name),
                                  text.size(), yaml_bytes_max));
  }
  EntryReader reader(name);
  std::istringstream stream(text);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(reader)) continue;
  } catch (const YAML::Exception& e) {
    throw ConfigError(fmt::format("{}:{}:{}: not YAML: {}", escaped(name), e.mark.line + 1,
                                  e.mark.column + 1, printable(e.msg)));
  }
  return reader.take_entries();
}

}  // namespace llm
