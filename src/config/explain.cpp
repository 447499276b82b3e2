#include "src/config/explain.h"

#include <fmt/format.h>

#include "src/base/error.h"
#include "src/config/rules.h"
#include "src/config/table.h"

namespace llm {
namespace {

/// "integer, 1 to 1048576", "text, one of a, b", "number or null, more than 0".
std::string type_text(const Field& field) {
  std::string out(kind_name(field.kind));
  if (field.nullable && field.kind != Kind::text_list) out += " or null";
  if (!field.choices.empty()) return out + ", one of " + joined(offered_choices(field));
  const std::string bounds = field.bounds.text();
  return bounds.empty() ? out : out + ", " + bounds;
}

std::string values_text(const std::vector<Value>& values) {
  std::string out;
  for (const Value& value : values) {
    if (!std::holds_alternative<std::monostate>(value)) {
      out += (out.empty() ? "" : ", ") + to_plain_text(value);
    }
  }
  return out;
}

/// What happens when the field is set: the status of the table.
std::string status_text(const Field& field) {
  if (field.limit == Field::Limit::none) {
    if (field.note.empty()) return "works";
    return "accepted with a note: " + field.note;
  }
  std::string accepted = values_text(field.accepted);
  if (field.is_stored() && accepted.empty()) accepted = to_plain_text(field.default_value());
  const std::string only = accepted.empty() ? "refused" : "only " + accepted;
  return fmt::format("{}{}: {}", only, field.limit == Field::Limit::later ? " in this version" : "",
                     field.instead);
}

std::string default_text(const Field& field) {
  return field.is_stored() ? to_plain_text(field.default_value()) : "-";
}

std::string upper_case(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::string explain_field(const Field& field) {
  std::string out =
      fmt::format("{}\n  {}\n  type: {}\n", field.path(), field.meaning, type_text(field));
  if (field.is_stored()) out += "  default: " + default_text(field) + "\n";
  if (!field.aliases.empty()) out += "  also: " + joined(field.aliases) + "\n";
  for (const auto& [value, instead] : field.refused_values) {
    out += fmt::format("  {} is refused: {}\n", value, instead);
  }
  out += "  status: " + status_text(field) + "\n";
  if (field.is_stored()) {
    out += fmt::format("  set by: {}=VALUE, LLM_{}__{}\n", field.path(), upper_case(field.section),
                       upper_case(field.name));
  }
  return out;
}

std::string explain_section(std::string_view section) {
  std::string out;
  for (const Field& field : all_fields()) {
    if (field.section == section) out += (out.empty() ? "" : "\n") + explain_field(field);
  }
  return out;
}

/// A table cell: no bars, no line ends.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string section_table(const Section& section, bool stored) {
  std::string rows;
  for (const Field& field : all_fields()) {
    if (field.section != section.name || field.is_stored() != stored) continue;
    const std::string aliases = field.aliases.empty() ? "" : " (" + joined(field.aliases) + ")";
    rows += stored ? fmt::format("| `{}`{} | {} | {} | {} | {} |\n", field.name, aliases,
                                 cell(type_text(field)), cell(default_text(field)),
                                 cell(field.meaning), cell(status_text(field)))
                   : fmt::format("| `{}` | {} | {} |\n", field.name, cell(field.meaning),
                                 cell(status_text(field)));
  }
  return rows;
}

constexpr const char* readme_head = R"(# Configuration

Printed by the program `config-readme` from the table in `src/config`; a test keeps this file equal.

A configuration is one YAML file: sections of fields, as `section: {field: value}`. Values are
taken, later ones winning, from: the defaults, the file, the variables `BACKEND`, `NUM_NODES`,
`NODE_RANK`, `GPUS_PER_NODE`, `MASTER_ADDR` and `MASTER_PORT`, the variables
`LLM_<SECTION>__<FIELD>`, and `section.field=value` on the command line. Unknown, duplicate,
ill-typed, out-of-range and contradictory values are refused with their place, exit code 78.
`llm-train --explain section.field` prints one field.
)";

}  // namespace

std::string explain(std::string_view path) {
  const std::size_t dot = path.find('.');
  const std::string section(path.substr(0, dot));
  try {
    if (dot == std::string_view::npos) {
      require_section("--explain", section);
      return explain_section(section);
    }
    return explain_field(require_field("--explain", section, path.substr(dot + 1)));
  } catch (const ConfigError& e) {
    throw UsageError(e.what());
  }
}

std::string explain_all() {
  std::string out;
  for (const Section& section : all_sections()) {
    const std::string fields = explain_section(section.name);
    if (!fields.empty()) out += (out.empty() ? "" : "\n") + fields;
  }
  return out;
}

std::string config_readme() {
  std::string out = readme_head;
  for (const Section& section : all_sections()) {
    out += fmt::format("\n## {}\n\n{}\n", section.name, section.meaning);
    if (!section.instead.empty()) {
      out += "Refused: " + section.instead + ".\n";
      continue;
    }
    out += "\n| field | type | default | meaning | status |\n|---|---|---|---|---|\n";
    out += section_table(section, true);
    const std::string guide = section_table(section, false);
    if (guide.empty()) continue;
    out += "\nFields of the distributed-training guide that have no counterpart:\n";
    out += "\n| field | there | here |\n|---|---|---|\n" + guide;
  }
  return out;
}

}  // namespace llm
