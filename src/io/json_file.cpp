#include "src/io/json_file.h"

#include <fmt/format.h>

#include <string>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/strict_json.h"

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
  nlohmann::json json = parse_strict_json(text_of(path), path.string(), max_depth);
  if (!json.is_object()) throw DataError(path.string() + ": holds no JSON object");
  return json;
}

}  // namespace llm
