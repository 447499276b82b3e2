#include "src/base/strict_json.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

#include "src/base/error.h"

namespace llm {
namespace {

using Json = nlohmann::json;

/// Looks at depth and names alone. A pass of its own: the library's parser that asks a callback
/// walks through all of a list's elements whenever one of its objects ends.
class Checker final : public nlohmann::json_sax<Json> {
 public:
  Checker(const std::string& file, int max_depth) : file_(file), max_depth_(max_depth) {}

  bool start_object(std::size_t) override {
    names_.emplace_back();
    return enter();
  }
  bool end_object() override {
    names_.pop_back();
    return leave();
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) {
      throw DataError(
          fmt::format("{}: the name {} stands twice in one object", file_, in_quotes(name)));
    }
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t byte, const std::string&, const Json::exception& error) override {
    throw DataError(fmt::format("{}: is not valid JSON: {} (byte {})", file_,
                                std::string_view(error.what()).substr(0, 200), byte));
  }

 private:
  bool enter() {
    if (++depth_ > max_depth_) {
      throw DataError(fmt::format("{}: JSON is nested {} deep; {} levels are the most", file_,
                                  depth_, max_depth_));
    }
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& file_;
  const int max_depth_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> names_;  // of the objects around
};

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t n_max = 60;
  const std::string shown(text.substr(0, n_max));
  return Json(shown).dump(-1, ' ', false, Json::error_handler_t::replace) +
         (text.size() > n_max ? "..." : "");
}

Json parse_strict_json(std::string_view text, const std::string& file, int max_depth) {
  if (text.find('\0') != std::string_view::npos) {  // the parser takes one for the end
    throw DataError(file + ": is not valid JSON: it holds a NUL byte");
  }
  Checker checker(file, max_depth);
  Json::sax_parse(text, &checker);
  return Json::parse(text);
}

}  // namespace llm
