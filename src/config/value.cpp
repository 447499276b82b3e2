#include "src/config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/base/error.h"

namespace llm {
namespace {

std::string without_underscores(const std::string& text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between_digits = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                                std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                                std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (!between_digits) digits += text[i];
  }
  return digits;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return c >= '0' && c <= '9'; });
}

std::string_view without_sign(std::string_view text) {
  return !text.empty() && (text[0] == '+' || text[0] == '-') ? text.substr(1) : text;
}

/// 010 is octal to some readers of YAML and decimal to others.
void refuse_leading_zero(const std::string& text, const Place& place, std::string_view field) {
  const std::string_view digits = without_sign(text);
  if (digits.size() > 1 && digits[0] == '0' && is_digits(digits.substr(0, 2))) {
    std::size_t first = std::min(digits.find_first_not_of('0'), digits.size() - 1);
    if (!is_digits(digits.substr(first, 1))) --first;
    refuse(
        place, field,
        fmt::format("{} has a leading zero, which some read as octal; write {}{}", printable(text),
                    text[0] == '-' ? "-" : "", printable(digits.substr(first))));
  }
}

template <class T>
bool reads_whole(std::string_view text, T& number) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Value parse_integer(const RawValue& raw, const Place& place, std::string_view field) {
  const std::string text = without_underscores(raw.text);
  refuse_leading_zero(text, place, field);
  std::int64_t number = 0;
  if (is_digits(without_sign(text))) {
    if (reads_whole(std::string_view(text), number)) return number;
    refuse(place, field, shown(raw) + " is too large for any integer field");
  }
  double real = 0;
  const bool is_whole = reads_whole(std::string_view(text), real) && std::floor(real) == real &&
                        std::fabs(real) < 1e15;
  refuse(place, field,
         is_whole ? fmt::format("{} is not written as an integer; write {}", shown(raw),
                                static_cast<std::int64_t>(real))
                  : shown(raw) + " is not an integer; write a whole number");
}

Value parse_real(const RawValue& raw, const Place& place, std::string_view field) {
  const std::string text = without_underscores(raw.text);
  refuse_leading_zero(text, place, field);
  std::string_view digits = without_sign(text);
  const bool starts_as_number =
      !digits.empty() &&
      (is_digits(digits.substr(0, 1)) ||
       (digits.size() > 1 && digits[0] == '.' && is_digits(digits.substr(1, 1))));
  double number = 0;
  if (starts_as_number && reads_whole(std::string_view(text), number) && std::isfinite(number)) {
    return number;
  }
  const bool is_too_large = starts_as_number &&
                            text.find_first_not_of("+-.eE0123456789") == std::string::npos &&
                            text.find_first_of("eE") != std::string::npos;
  refuse(place, field,
         shown(raw) + (is_too_large ? " is outside of what a number can hold"
                                    : " is not a finite number; write one like 0.001 or 1e-3"));
}

Value parse_boolean(const RawValue& raw, const Place& place, std::string_view field) {
  const std::string& text = raw.text;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  refuse(place, field, shown(raw) + " is not a boolean; write true or false");
}

/// Cuts at commas outside of {}, so that "src/*.{h,cpp}, docs/*.md" is two globs.
std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '{') - (c == '}');
    if (c == ',' && depth <= 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  for (std::string& item : items) {
    item.erase(0, std::min(item.find_first_not_of(' '), item.size()));
    item.erase(item.find_last_not_of(' ') + 1);
  }
  return items;
}

Value parse_list(const RawValue& raw, const Place& place, std::string_view field) {
  std::vector<std::string> items =
      raw.form == RawValue::Form::list ? raw.items : split_list(raw.text);
  if (std::any_of(items.begin(), items.end(), [](const auto& item) { return item.empty(); })) {
    refuse(place, field, "one of the list's texts is empty; remove it");
  }
  if (items.empty()) return std::monostate();
  return items;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// Edits (insert, delete, replace, swap of neighbours) between two names.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string shown(const RawValue& raw) {
  switch (raw.form) {
    case RawValue::Form::null:
      return "null";
    case RawValue::Form::list:
      return "a list";
    case RawValue::Form::nested:
      return "a map or a list of lists";
    case RawValue::Form::plain:
      return raw.text.empty() ? "an empty value" : printable(raw.text);
    case RawValue::Form::quoted:
      return "\"" + printable(raw.text) + "\"";
  }
  return {};
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::boolean:
      return "boolean";
    case Kind::integer:
      return "integer";
    case Kind::real:
      return "number";
    case Kind::text:
      return "text";
    case Kind::text_list:
      return "list of texts";
  }
  return {};
}

std::string to_yaml_text(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  if (const auto* items = std::get_if<std::vector<std::string>>(&value)) {
    std::string out;
    for (const std::string& item : *items) out += (out.empty() ? "" : ", ") + quoted(item);
    return "[" + out + "]";
  }
  return to_plain_text(value);
}

std::string to_plain_text(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (std::holds_alternative<std::vector<std::string>>(value)) return to_yaml_text(value);
  return "null";
}

Value parse_value(const RawValue& raw, Kind kind, const Place& place, std::string_view field) {
  using Form = RawValue::Form;
  const bool is_text = kind == Kind::text || kind == Kind::text_list;
  if (raw.form == Form::nested || (raw.form == Form::list && kind != Kind::text_list)) {
    refuse(place, field,
           fmt::format("{} stands where one {} belongs", shown(raw),
                       kind == Kind::text_list ? "list of texts" : kind_name(kind)));
  }
  if (raw.form == Form::quoted && !is_text) {
    refuse(place, field,
           fmt::format("{} is a quoted text, not a{} {}; write it without quotes", shown(raw),
                       kind == Kind::integer ? "n" : "", kind_name(kind)));
  }
  switch (kind) {
    case Kind::boolean:
      return parse_boolean(raw, place, field);
    case Kind::integer:
      return parse_integer(raw, place, field);
    case Kind::real:
      return parse_real(raw, place, field);
    case Kind::text:
      return raw.text;
    case Kind::text_list:
      return parse_list(raw, place, field);
  }
  return {};
}

std::string joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string printable(std::string_view text) {
  constexpr std::size_t max_bytes = 60;
  if (text.size() <= max_bytes) return escaped(text);
  std::size_t cut = max_bytes;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return escaped(text.substr(0, cut)) + "...";
}

void refuse(const Place& place, std::string_view field, const std::string& problem) {
  throw ConfigError(fmt::format("{}: {}: {}", place, field, problem));
}

std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates) {
  if (name.size() > 64) return std::nullopt;
  std::optional<std::string> nearest;
  const std::size_t n_edits_max = name.size() <= 3 ? 1 : std::max<std::size_t>(2, name.size() / 3);
  std::size_t least = n_edits_max + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const auto nearest = nearest_name(name, candidates);
  return nearest ? "; did you mean " + *nearest + "?" : "";
}

}  // namespace llm
