#include "src/data/source_state.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace llm {
namespace {

SourceState parse_state(const std::string& json) {
  try {
    const auto value = nlohmann::json::parse(json);
    return {.kind = value.at("kind"), .source = value.at("source"), .place = value.at("place")};
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("the checkpoint's data position cannot be read: {}", error.what()));
  }
}

}  // namespace

std::string to_json(const SourceState& state) {
  return nlohmann::json{{"kind", state.kind}, {"source", state.source}, {"place", state.place}}
      .dump();
}

SourceState read_state(const std::string& json, const SourceState& own) {
  SourceState saved = parse_state(json);
  if (saved.kind != own.kind) {
    throw DataError(
        fmt::format("the checkpoint's data is of kind {}, this run's of kind {}; resume "
                    "with the task it was saved by",
                    saved.kind, own.kind));
  }
  for (const auto& [name, value] : own.source) {
    const auto found = saved.source.find(name);
    if (found != saved.source.end() && found->second == value) continue;
    if (name == data_key_field) {
      throw DataError(
          "the data files are not those of the checkpoint (their names, sizes or order differ, or "
          "the "
          "tokenizer does): the samples would not continue where they stopped");
    }
    throw DataError(fmt::format(
        "{} was {} when the checkpoint was saved and is {} now: the samples would not continue "
        "where "
        "they stopped; set it back",
        name, found == saved.source.end() ? "not there" : std::to_string(found->second), value));
  }
  return saved;
}

}  // namespace llm
