#pragma once
#include <string>
#include <string_view>

namespace llm {

/// What the table says of "section.field", or of all fields of "section", for the terminal.
/// Throws UsageError naming the nearest for anything else.
std::string explain(std::string_view path);

/// Every field, section by section.
std::string explain_all();

/// The text of configs/README.md.
std::string config_readme();

}  // namespace llm
