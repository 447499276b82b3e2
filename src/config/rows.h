#pragma once
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/config/table.h"

namespace llm {

/// How the table's rows are written down (fields_*.cpp). Read a row as a sentence:
///   rows.add("lr", &TrainingConfig::lr, "Peak learning
///   rate.").in(more_than(0)).also("learning_rate");

template <class T>
struct FieldType {
  using Stored = T;
  static constexpr bool nullable = false;
};
template <class T>
struct FieldType<std::optional<T>> {
  using Stored = T;
  static constexpr bool nullable = true;
};

template <class T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>) return Kind::boolean;
  if constexpr (std::is_same_v<T, std::int64_t>) return Kind::integer;
  if constexpr (std::is_same_v<T, double>) return Kind::real;
  if constexpr (std::is_same_v<T, std::string>) return Kind::text;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return Kind::text_list;
}

/// Large enough for any model and run, small enough that products of two never overflow.
inline constexpr double count_max = 1 << 30;

inline Bounds at_least(double min) {
  return {.min = min};
}
inline Bounds more_than(double min) {
  return {.min = min, .min_open = true};
}
inline Bounds between(double min, double max) {
  return {.min = min, .max = max};
}
inline Bounds from_below(double min, double max) {
  return {.min = min, .max = max, .max_open = true};
}

/// The row that is being written; valid until the next row is added.
class Row {
 public:
  explicit Row(Field& field) : field_(field) {}

  Row& in(Bounds bounds) { return field_.bounds = bounds, *this; }
  Row& of(std::vector<std::string> choices) { return field_.choices = std::move(choices), *this; }
  Row& or_starting_with(std::string prefix) {
    return field_.open_choice = std::move(prefix), *this;
  }
  Row& reads(std::string written, std::string stored, std::string note = "") {
    field_.synonyms.push_back({std::move(written), std::move(stored), std::move(note)});
    return *this;
  }
  Row& also(std::string alias) { return field_.aliases.push_back(std::move(alias)), *this; }
  /// One choice of others that this program does not have: what to write instead.
  Row& without(std::string value, std::string instead) {
    return field_.refused_values.emplace_back(std::move(value), std::move(instead)), *this;
  }
  /// Only `accepted` (and the default) work in this version.
  Row& later(std::vector<Value> accepted, std::string instead) {
    return limit(Field::Limit::later, std::move(accepted), std::move(instead));
  }
  /// Only `accepted` will ever be taken.
  Row& never_but(std::vector<Value> accepted, std::string instead) {
    return limit(Field::Limit::never, std::move(accepted), std::move(instead));
  }
  Row& when(std::function<bool(const Config&)> limited) {
    return field_.limited_when = std::move(limited), *this;
  }
  Row& note(std::string text) { return field_.note = std::move(text), *this; }

 private:
  Row& limit(Field::Limit limit, std::vector<Value> accepted, std::string instead) {
    field_.limit = limit;
    field_.accepted = std::move(accepted);
    field_.instead = std::move(instead);
    return *this;
  }
  Field& field_;
};

/// The rows of one section, whose struct is S.
template <class S>
class Rows {
 public:
  Rows(std::string section, S Config::* part) : section_(std::move(section)), part_(part) {}

  /// A field that Config holds; type and default come from the member.
  template <class T>
  Row add(std::string name, T S::* member, std::string meaning) {
    using Stored = typename FieldType<T>::Stored;
    constexpr bool is_list = std::is_same_v<T, std::vector<std::string>>;
    Field& field = append(std::move(name), kind_of<Stored>(), std::move(meaning));
    field.nullable = FieldType<T>::nullable || is_list;
    field.get = [part = part_, member](const Config& config) -> Value {
      const T& value = config.*part.*member;
      if constexpr (is_list) return value.empty() ? Value{} : Value{value};
      if constexpr (FieldType<T>::nullable) return value ? Value{*value} : Value{};
      if constexpr (!is_list && !FieldType<T>::nullable) return value;
    };
    field.set = [part = part_, member](Config& config, const Value& value) {
      const bool is_null = std::holds_alternative<std::monostate>(value);
      config.*part.*member = is_null ? T{} : T{std::get<Stored>(value)};
    };
    if (field.kind == Kind::integer) field.bounds = between(0, count_max);
    return Row(field);
  }

  /// A field of the guide's that Config does not hold.
  Row guide(std::string name, Kind kind, std::string meaning) {
    Field& field = append(std::move(name), kind, std::move(meaning));
    field.nullable = true;
    return Row(field);
  }

  std::vector<Field> take() { return std::move(fields_); }

 private:
  Field& append(std::string name, Kind kind, std::string meaning) {
    Field& field = fields_.emplace_back();
    field.section = section_;
    field.name = std::move(name);
    field.kind = kind;
    field.meaning = std::move(meaning);
    return field;
  }

  std::string section_;
  S Config::* part_;
  std::vector<Field> fields_;
};

std::vector<Field> model_fields();
std::vector<Field> training_fields();
std::vector<Field> optimization_fields();
std::vector<Field> data_fields();
std::vector<Field> distributed_fields();
std::vector<Field> checkpoint_fields();
std::vector<Field> logging_fields();
std::vector<Field> numerics_fields();

}  // namespace llm
