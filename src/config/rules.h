#pragma once
#include "src/config/load.h"
#include "src/config/table.h"

namespace llm {

/// The rules that load_config holds a value against; each throws ConfigError.

/// The texts that may be written: choices, synonyms, and "file:PATH".
std::vector<std::string> offered_choices(const Field& field);

/// The value lies in the field's range and among its choices.
void check_range(const Field& field, const Value& value, const Place& place);

/// The value is one that this version carries out.
void check_works(const Field& field, const Value& value, const Place& place);

/// Values that are legal alone also go together. Adds notes for values that have no effect.
void check_together(LoadedConfig& loaded);

/// The place of the first of these fields that is not a default: where to look for a contradiction.
Place place_of(const LoadedConfig& loaded, std::initializer_list<const char*> fields);

}  // namespace llm
