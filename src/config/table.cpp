#include "src/config/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/config/rows.h"

namespace llm {
namespace {

std::vector<Field> build_table() {
  std::vector<Field> fields;
  for (auto part : {model_fields, training_fields, optimization_fields, data_fields,
                    distributed_fields, checkpoint_fields, logging_fields, numerics_fields}) {
    for (Field& field : part()) fields.push_back(std::move(field));
  }
  return fields;
}

std::vector<std::string> names_in(std::string_view section) {
  std::vector<std::string> names;
  for (const Field& field : all_fields()) {
    if (field.section != section) continue;
    names.push_back(field.name);
    names.insert(names.end(), field.aliases.begin(), field.aliases.end());
  }
  return names;
}

}  // namespace

bool Bounds::holds(double x) const {
  return (min_open ? x > min : x >= min) && (max_open ? x < max : x <= max);
}

std::string Bounds::text() const {
  const auto number = [](double x) {
    return std::fabs(x) < 1e15 && std::floor(x) == x
               ? fmt::format("{}", static_cast<std::int64_t>(x))
               : fmt::format("{}", x);
  };
  const bool has_min = std::isfinite(min), has_max = std::isfinite(max);
  if (has_min && has_max && !min_open && !max_open) {
    return fmt::format("{} to {}", number(min), number(max));
  }
  std::string out;
  if (has_min) out = (min_open ? "more than " : "at least ") + number(min);
  if (has_max)
    out += (has_min ? ", " : "") + std::string(max_open ? "below " : "at most ") + number(max);
  return out;
}

const std::vector<Field>& all_fields() {
  static const std::vector<Field> fields = build_table();
  return fields;
}

const std::vector<Section>& all_sections() {
  static const std::string no_rl =
      "reinforcement learning is not in this version: the tasks are lm, stream_lm and sft; remove "
      "the "
      "section";
  static const std::vector<Section> sections = {
      {"model", "The decoder: sizes and kinds of its parts.", ""},
      {"training", "Batch, length of the run, optimizer, learning rate, validation.", ""},
      {"optimization", "Precision, accumulation, recomputation.", ""},
      {"data", "Files, tokens, order.", ""},
      {"distributed", "Ranks: strategy, grid, launch, messages.", ""},
      {"checkpoint", "What is saved and where.", ""},
      {"logging", "Where the run's files go and what is printed.", ""},
      {"numerics", "Choices that change bits.", ""},
      {"ppo", "Reinforcement learning of the guide's.", no_rl},
      {"rlhf", "Reinforcement learning of the guide's.", no_rl},
  };
  return sections;
}

const Field* find_field(std::string_view section, std::string_view name) {
  for (const Field& field : all_fields()) {
    if (field.section == section &&
        (field.name == name || std::count(field.aliases.begin(), field.aliases.end(), name))) {
      return &field;
    }
  }
  return nullptr;
}

void require_section(const Place& place, std::string_view section) {
  std::vector<std::string> names;
  for (const Section& known : all_sections()) {
    if (known.name == section && known.instead.empty()) return;
    if (known.name == section) refuse(place, section, known.instead);
    names.push_back(known.name);
  }
  for (const Field& field : all_fields()) {
    if (field.name == section) {
      refuse(place, section, "a field outside of its section; it is " + field.path());
    }
  }
  refuse(place, printable(section), "unknown section" + did_you_mean(section, names));
}

const Field& require_field(const Place& place, std::string_view section, std::string_view name) {
  require_section(place, section);
  if (const Field* field = find_field(section, name)) return *field;
  const std::string path = fmt::format("{}.{}", section, printable(name));
  for (const Section& other : all_sections()) {
    if (const Field* field = find_field(other.name, name)) {
      refuse(place, path, "unknown field; it is " + field->path());
    }
  }
  refuse(place, path, "unknown field" + did_you_mean(name, names_in(section)));
}

}  // namespace llm
