#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace llm {

/// A field's value; monostate is null.
using Value =
    std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>>;

enum class Kind { boolean, integer, real, text, text_list };

/// "boolean", "integer", "number", "text", "list of texts".
std::string_view kind_name(Kind kind);

/// As YAML: null, true, 12, 1e-05, "text", ["a", "b"]. Read back, the same value.
std::string to_yaml_text(const Value& value);

/// As people write it, for messages and tables: text without quotes.
std::string to_plain_text(const Value& value);

/// A value as a source wrote it, before its type is known.
struct RawValue {
  enum class Form { null, plain, quoted, list, nested };
  Form form = Form::plain;
  std::string text;                ///< plain, quoted
  std::vector<std::string> items;  ///< list
};

/// How a message shows it: its text, or "a list".
std::string shown(const RawValue& raw);

/// Where something stands: "file:line:column", "environment NAME" or "command line".
using Place = std::string;

/// Reads `raw` as `kind`. Strict: 010, 0x10, 1e3 and "2" are no integers, yes and 1 no booleans,
/// nan and inf no numbers. 10_000 is an integer. One text for a list is cut at commas outside of
/// {}. Throws ConfigError "place: field: problem".
Value parse_value(const RawValue& raw, Kind kind, const Place& place, std::string_view field);

/// `text` on one line, control characters escaped: safe to print.
std::string escaped(std::string_view text);

/// escaped() of at most the first 60 bytes.
std::string printable(std::string_view text);

/// "a, b, c".
std::string joined(const std::vector<std::string>& items);

/// "place: field: problem", thrown as ConfigError.
[[noreturn]] void refuse(const Place& place, std::string_view field, const std::string& problem);

/// The candidate that `name` probably means (few edits away), or nothing.
std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates);

/// "; did you mean X?" or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace llm
