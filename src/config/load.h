#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/config/config.h"
#include "src/config/value.h"

namespace llm {

/// What the folder that model.init_from names says of a field of the section model.
struct FolderField {
  std::string name;
  Value value;
  /// Whether another source may say something else: never, a smaller number, anything.
  enum class Binding { equal, at_most, free } binding = Binding::equal;
  std::string problem = {};  ///< not empty: the folder has no value, and this says why
};

/// Everything a configuration is made from, later ones winning over earlier ones:
///   the defaults < the folder of model.init_from < yaml < the guide's variables (BACKEND,
///   NUM_NODES, NODE_RANK, GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT) < LLM_<SECTION>__<FIELD> <
///   overrides
struct ConfigSources {
  std::string yaml_name;  ///< for messages, usually the file's path
  std::string yaml_text;  ///< one document, at most 1 MiB; empty means all defaults
  std::map<std::string, std::string> environment;  ///< the whole environment: others are left alone
  std::vector<std::string> overrides;  ///< "section.field=value"; the last of a field wins
  /// Asked where model.init_from is set; throws what it likes. Empty: folders are not looked at.
  std::function<std::vector<FolderField>(const std::string& folder)> read_folder = {};
};

struct LoadedConfig {
  Config config;
  /// One line for each thing that was accepted without doing what it says, with its place.
  std::vector<std::string> notes;
  /// "section.field" -> where its value comes from: "file:line:column", "environment NAME",
  /// "command line" or "default". Holds every field of Config.
  std::map<std::string, std::string> origins;
};

/// Resolves and checks all sources. Pure but for read_folder: reads neither files nor the process's
/// environment. A source that contradicts the folder is refused with both values. Throws
/// ConfigError with one line, "place: section.field: problem; way out", for the first fault.
LoadedConfig load_config(const ConfigSources& sources);

/// The file's text. Throws ConfigError naming the path if it is missing, a folder, unreadable or
/// larger than 1 MiB.
std::string read_config_file(const std::filesystem::path& path);

/// The process's environment as load_config takes it.
std::map<std::string, std::string> process_environment();

/// The resolved configuration as YAML that load_config reads back to an equal Config; each value
/// that is not a default carries its origin as a comment.
std::string to_yaml(const LoadedConfig& loaded);

}  // namespace llm
