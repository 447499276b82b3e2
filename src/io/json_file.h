#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

namespace llm {

/// The object in a JSON file of at most 64 MiB that people or other tools wrote. Throws FileError
/// where it cannot be read; DataError naming the file where it is longer, no JSON, no object, not
/// UTF-8, nested deeper than 32 levels or holds a key twice (of which readers take either value).
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace llm
