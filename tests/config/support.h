#pragma once
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/config/load.h"

namespace llm::test {

/// Loads `yaml` as the file "c.yaml", with no other source.
inline LoadedConfig load(const std::string& yaml) {
  return load_config(
      {.yaml_name = "c.yaml", .yaml_text = yaml, .environment = {}, .overrides = {}});
}

/// The message that the call is refused with, or "accepted".
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

inline std::string refusal_of(const std::string& yaml) {
  return refusal([&] { load(yaml); });
}

}  // namespace llm::test
