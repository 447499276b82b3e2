#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace llm {

/// What a checkpoint keeps of a sample source: whose samples they are, and where a stream stands.
struct SourceState {
  std::string kind;                            ///< of source
  std::map<std::string, std::int64_t> source;  ///< by what a user knows: configuration fields
  std::map<std::string, std::int64_t> place;   ///< of a stream
};

/// The field of `source` that holds the key of the data files.
inline constexpr const char* data_key_field = "data files";

std::string to_json(const SourceState& state);

/// Reads a state and holds it against `own`, the state of the source that is to continue. DataError
/// names what differs with both values, or says that the text is no state.
SourceState read_state(const std::string& json, const SourceState& own);

}  // namespace llm
