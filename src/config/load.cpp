#include "src/config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "src/base/error.h"
#include "src/config/rules.h"
#include "src/config/table.h"
#include "src/config/yaml_source.h"

extern char** environ;

namespace llm {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// What one source said of a field, as it was written and as it is read.
struct Setting {
  Value value;
  Place place;
  std::string written_name;
};

/// The settings of all sources, the later source winning.
class Settings {
 public:
  /// Starts a source: within one, two names of a field contradict each other.
  void begin_source() { in_this_source_.clear(); }

  void set(const Field& field, const RawValue& raw, const Place& place, std::string written_name) {
    const auto [first, is_first] =
        in_this_source_.emplace(&field, Setting{{}, place, written_name});
    if (!is_first) {
      refuse(place, field.section + "." + written_name,
             fmt::format("sets the same field as {} at {}; keep one", first->second.written_name,
                         first->second.place));
    }
    of_[&field] = {read(field, raw, place), place, std::move(written_name)};
  }

  /// What the folder of weights says of a field that no source has set.
  void take(const Field& field, const Value& value, const Place& place) {
    check_range(field, value, place);
    of_[&field] = {value, place, field.name};
  }

  /// The setting, or nullptr where the default holds.
  const Setting* find(const Field& field) const {
    const auto it = of_.find(&field);
    return it == of_.end() ? nullptr : &it->second;
  }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Value read(const Field& field, RawValue raw, const Place& place) {
    const std::string path = field.path();
    if (field.limit == Field::Limit::never && field.accepted.empty()) {
      refuse(place, path, "has no counterpart here; " + field.instead);
    }
    const bool is_null_text = raw.form == RawValue::Form::plain && field.nullable &&
                              (raw.text == "null" || raw.text == "~");
    if (raw.form == RawValue::Form::null || is_null_text) {
      if (field.nullable) return std::monostate();
      refuse(place, path,
             fmt::format("is null; write a{} {}, or remove the line for {}",
                         field.kind == Kind::integer ? "n" : "", kind_name(field.kind),
                         to_plain_text(field.default_value())));
    }
    if (raw.form != RawValue::Form::list && raw.form != RawValue::Form::nested &&
        raw.text.empty()) {
      refuse(place, path, "is empty; write a value or remove it");
    }
    if (raw.form == RawValue::Form::plain || raw.form == RawValue::Form::quoted) {
      for (const Synonym& synonym : field.synonyms) {
        if (synonym.written != raw.text) continue;
        raw.text = synonym.stored;
        if (!synonym.note.empty()) notes_.push_back(place + ": " + path + ": " + synonym.note);
        break;
      }
    }
    if (is_only_refused(field)) return Value{shown(raw)};
    const Value value = parse_value(raw, field.kind, place, path);
    check_range(field, value, place);
    return value;
  }

  /// A field that takes nothing but null needs no type.
  static bool is_only_refused(const Field& field) {
    return !field.is_stored() && field.accepted == std::vector<Value>{Value{}};
  }

  std::map<const Field*, Setting> of_;
  std::map<const Field*, Setting> in_this_source_;
  std::vector<std::string> notes_;
};

void read_yaml_source(const ConfigSources& sources, Settings& settings) {
  settings.begin_source();
  const YamlEntries yaml = read_yaml(sources.yaml_name, sources.yaml_text);
  for (const YamlSection& section : yaml.sections) {
    require_section(section.place, section.name);
    if (!section.wrong_value_place.empty()) {
      refuse(section.wrong_value_place, section.name,
             "a section holds fields, as \"field: value\"");
    }
  }
  for (const YamlEntry& entry : yaml.entries) {
    const Field& field = require_field(entry.key_place, entry.section, entry.name);
    settings.set(field, entry.value, entry.value_place, entry.name);
  }
}

/// The variables that the guide names, without a prefix. An empty one counts as not set.
void read_guide_variables(const std::map<std::string, std::string>& environment,
                          Settings& settings) {
  settings.begin_source();
  for (const char* name :
       {"BACKEND", "NUM_NODES", "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT"}) {
    const auto variable = environment.find(name);
    if (variable == environment.end() || variable->second.empty()) continue;
    const Place place = fmt::format("environment {}", name);
    const std::string field_name = lower_case(name);
    settings.set(require_field(place, "distributed", field_name),
                 {.form = RawValue::Form::plain, .text = variable->second, .items = {}}, place,
                 field_name);
  }
}

void read_llm_variables(const std::map<std::string, std::string>& environment, Settings& settings) {
  settings.begin_source();
  for (const auto& [variable, text] : environment) {
    const std::string name = lower_case(variable);
    const std::size_t cut = name.find("__");
    if (name.rfind("llm_", 0) != 0 || cut == std::string::npos || cut <= 4) continue;
    const std::string section = name.substr(4, cut - 4), field_name = name.substr(cut + 2);
    const Place place = "environment " + printable(variable);
    settings.set(require_field(place, section, field_name),
                 {.form = RawValue::Form::plain, .text = text, .items = {}}, place, field_name);
  }
}

void read_overrides(const std::vector<std::string>& overrides, Settings& settings) {
  const Place place = "command line";
  for (const std::string& text : overrides) {
    settings.begin_source();
    const std::size_t equals = text.find('=');
    const std::size_t dot = text.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
      refuse(place, printable(text), "not an override; write section.field=value");
    }
    const std::string section = text.substr(0, dot), name = text.substr(dot + 1, equals - dot - 1);
    settings.set(require_field(place, section, name),
                 {.form = RawValue::Form::plain, .text = text.substr(equals + 1), .items = {}},
                 place, name);
  }
}

/// Whether the folder's model may be taken with this value. A real number is an f32 in the end.
bool goes_with(const FolderField& of_folder, const Value& value) {
  if (of_folder.binding == FolderField::Binding::free || value == of_folder.value) return true;
  if (const auto* real = std::get_if<double>(&value)) {
    return static_cast<float>(*real) == static_cast<float>(std::get<double>(of_folder.value));
  }
  return of_folder.binding == FolderField::Binding::at_most &&
         std::get<std::int64_t>(value) <= std::get<std::int64_t>(of_folder.value);
}

void read_folder(const ConfigSources& sources, Settings& settings) {
  const Setting* const init_from = settings.find(*find_field("model", "init_from"));
  if (!sources.read_folder || init_from == nullptr) return;
  const auto* const folder = std::get_if<std::string>(&init_from->value);
  if (folder == nullptr) return;
  const Place place = *folder;
  for (const FolderField& of_folder : sources.read_folder(*folder)) {
    const Field& field = require_field(place, "model", of_folder.name);
    const Setting* const setting = settings.find(field);
    const bool is_set =
        setting != nullptr && !std::holds_alternative<std::monostate>(setting->value);
    if (!is_set) {
      if (!of_folder.problem.empty()) refuse(place, field.path(), of_folder.problem);
      settings.take(field, of_folder.value, place);
    } else if (of_folder.problem.empty() && !goes_with(of_folder, setting->value)) {
      const bool at_most = of_folder.binding == FolderField::Binding::at_most;
      refuse(setting->place, field.path(),
             fmt::format("{} contradicts model.init_from, whose model has {}; remove the field, or "
                         "write {}{}",
                         to_plain_text(setting->value), to_plain_text(of_folder.value),
                         to_plain_text(of_folder.value), at_most ? " at most" : ""));
    }
  }
}

/// Notes of fields that were set: once for each text, in the table's order.
void add_notes(const Settings& settings, std::vector<std::string>& notes) {
  std::vector<std::string> said;
  for (const Field& field : all_fields()) {
    const Setting* setting = settings.find(field);
    const bool is_set = setting && (!field.is_stored() || setting->value != field.default_value());
    if (!is_set || field.note.empty() || std::count(said.begin(), said.end(), field.note)) continue;
    said.push_back(field.note);
    notes.push_back(fmt::format("{}: {}: {}", setting->place, field.path(), field.note));
  }
}

}  // namespace

LoadedConfig load_config(const ConfigSources& sources) {
  Settings settings;
  read_yaml_source(sources, settings);
  read_guide_variables(sources.environment, settings);
  read_llm_variables(sources.environment, settings);
  read_overrides(sources.overrides, settings);
  read_folder(sources, settings);

  LoadedConfig loaded;
  for (const Field& field : all_fields()) {
    const Setting* setting = settings.find(field);
    if (!field.is_stored()) continue;
    if (setting) field.set(loaded.config, setting->value);
    loaded.origins[field.path()] = setting ? setting->place : "default";
  }
  for (const Field& field : all_fields()) {
    const Setting* setting = settings.find(field);
    const bool is_limited = !field.limited_when || field.limited_when(loaded.config);
    if (setting && is_limited) check_works(field, setting->value, setting->place);
  }
  loaded.notes = settings.notes();
  add_notes(settings, loaded.notes);
  check_together(loaded);
  return loaded;
}

std::string read_config_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError(path.string() + ": is a folder; name a YAML file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigError(fmt::format("{}: {}; name a YAML file with --config-path", path.string(),
                                  std::strerror(errno)));
  }
  std::string text(yaml_bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw ConfigError(path.string() + ": cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > yaml_bytes_max) {
    throw ConfigError(
        fmt::format("{}: a configuration has at most {} bytes", path.string(), yaml_bytes_max));
  }
  return text;
}

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::string to_yaml(const LoadedConfig& loaded) {
  std::string out;
  std::string section;
  for (const Field& field : all_fields()) {
    if (!field.is_stored()) continue;
    if (field.section != section) {
      section = field.section;
      out += (out.empty() ? "" : "\n") + section + ":\n";
    }
    out += "  " + field.name + ": " + to_yaml_text(field.get(loaded.config));
    const std::string& origin = loaded.origins.at(field.path());
    out += origin == "default" ? "\n" : "  # " + escaped(origin) + "\n";
  }
  return out;
}

}  // namespace llm
