#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace llm {

/// The JSON value that a text of people or of other tools holds, in time linear in its length.
/// Throws DataError naming `file` where the text is no JSON, not UTF-8 or holds a NUL byte, is
/// nested deeper than `max_depth` levels, or an object holds a name twice (of which readers take
/// either value).
nlohmann::json parse_strict_json(std::string_view text, const std::string& file, int max_depth);

/// A part of a file's text for a message: its beginning, in quotes and escaped.
std::string in_quotes(std::string_view text);

}  // namespace llm
