#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/config/config.h"
#include "src/config/value.h"

namespace llm {

/// The numbers a field takes.
struct Bounds {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  ///< min itself is not taken
  bool max_open = false;
  bool holds(double x) const;
  std::string text() const;  ///< "at least 1", "more than 0", "0 to 1", "at least 0, below 1", ""
};

/// A text that is read as another one of the field's choices.
struct Synonym {
  std::string written;
  std::string stored;
  std::string note;  ///< said when it is written; may be empty
};

/// One field: everything there is to know about it. Fields of Config carry get and set; the guide's
/// fields that have no counterpart here carry none and are there to be refused, or accepted with a
/// note, in words that say what to write instead.
struct Field {
  std::string section;
  std::string name;
  Kind kind = Kind::text;
  bool nullable = false;
  std::string meaning;  ///< one sentence
  std::function<Value(const Config&)> get;
  std::function<void(Config&, const Value&)> set;

  Bounds bounds;                     ///< integer, real
  std::vector<std::string> choices;  ///< text: what may be written; empty: anything
  std::string open_choice;           ///< a prefix that may be written too, as "file:"
  std::vector<Synonym> synonyms;
  std::vector<std::string> aliases;  ///< other names of the field
  /// Texts that get their own words when refused: value -> what to write instead.
  std::vector<std::pair<std::string, std::string>> refused_values;

  enum class Limit { none, later, never } limit = Limit::none;
  std::vector<Value> accepted;                      ///< the values that work, under later and never
  std::function<bool(const Config&)> limited_when;  ///< the limit holds only then; empty: always
  std::string instead;                              ///< what to write instead of another value
  std::string note;                                 ///< said when the field is set

  std::string path() const { return section + "." + name; }
  bool is_stored() const { return bool(get); }
  /// What a Config without sources holds; null for a field that is not stored.
  Value default_value() const { return get ? get(Config{}) : Value{}; }
};

/// Every field, section by section, in the order in which it is documented and written.
const std::vector<Field>& all_fields();

/// A section and its one-line description; the guide's sections that are refused say why.
struct Section {
  std::string name;
  std::string meaning;
  std::string instead;  ///< not empty: refused
};
const std::vector<Section>& all_sections();

/// The field of that name or alias, or nullptr.
const Field* find_field(std::string_view section, std::string_view name);

/// The field, or a refusal that names the nearest section or field. `place` is where it was
/// written.
const Field& require_field(const Place& place, std::string_view section, std::string_view name);

/// The section, or a refusal that names the nearest.
void require_section(const Place& place, std::string_view section);

}  // namespace llm
