#pragma once
#include <string>
#include <vector>

#include "src/config/value.h"

namespace llm {

/// One `section: {name: value}` of a YAML text, in the order of the text.
struct YamlEntry {
  std::string section;
  std::string name;
  RawValue value;
  Place key_place;
  Place value_place;
};

/// A section's key, so that an unknown section is refused even when it is empty.
struct YamlSection {
  std::string name;
  Place place;
  /// Where a single value or a list stands instead of fields; empty otherwise.
  Place wrong_value_place;
};

struct YamlEntries {
  std::vector<YamlSection> sections;
  std::vector<YamlEntry> entries;
};

/// Reads the text as one map of sections of fields. Knows nothing of which ones exist.
/// Throws ConfigError "name:line:column: ..." for broken YAML, another shape, a key given twice,
/// anchors, aliases, merge keys, tags, a second document and more than 1 MiB.
YamlEntries read_yaml(const std::string& name, const std::string& text);

inline constexpr std::size_t yaml_bytes_max = 1 << 20;

}  // namespace llm
