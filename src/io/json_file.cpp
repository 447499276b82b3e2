#include "src/io/json_file.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/file.h"

namespace llm {
namespace {

constexpr std::int64_t max_bytes = 64 << 20;
constexpr int max_depth = 32;

std::string text_of(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.n_bytes() > max_bytes) {
    throw DataError(fmt::format("{}: {} bytes are more than the {} of a JSON file", path.string(),
                                file.n_bytes(), max_bytes));
  }
  std::string text(static_cast<std::size_t>(file.n_bytes()), ' ');
  file.read(0, file.n_bytes(), text.data());
  return text;
}

}  // namespace

nlohmann::json read_json_object(const std::filesystem::path& path) {
  using Json = nlohmann::json;
  const std::string text = text_of(path);
  std::vector<std::set<std::string>> keys;  // of the objects around
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > max_depth) {
      throw DataError(
          fmt::format("{}: JSON nested deeper than {} levels", path.string(), max_depth));
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value).second) {
      throw DataError(
          fmt::format("{}: the key {} stands there twice", path.string(), value.dump()));
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{}: not JSON: {}", path.string(), error.what()));
  }
  if (!json.is_object()) throw DataError(path.string() + ": holds no JSON object");
  return json;
}

}  // namespace llm
