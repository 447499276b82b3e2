#include "src/data/sft_example.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace llm {
namespace {
using Json = nlohmann::json;

constexpr std::size_t shown_max = 200;

/// A message shows the beginning of what may be a line of megabytes.
std::string short_text(const std::string& text) {
  return text.size() <= shown_max ? text : text.substr(0, shown_max) + " ...";
}

Json parse_line(std::string_view line, const std::string& where) {
  try {
    return Json::parse(line);
  } catch (const Json::parse_error& error) {
    throw DataError(fmt::format("{}: is not valid JSON (at byte {} of the line): {}", where,
                                error.byte, short_text(error.what())));
  }
}

/// The text of a field; what is missing or null is refused unless it `may_lack`.
std::string text_field(const Json& object, const char* name, const std::string& where,
                       bool may_lack = false) {
  const auto found = object.find(name);
  const bool lacks = found == object.end() || found->is_null();
  if (lacks && may_lack) return "";
  if (found == object.end()) {
    throw DataError(fmt::format("{}: has no field \"{}\"", where, name));
  }
  if (!found->is_string()) {
    throw DataError(fmt::format("{}: the field \"{}\" is {} and not a string", where, name,
                                found->type_name()));
  }
  return found->get<std::string>();
}

/// What stands before a message's text.
std::string heading_of(const std::string& role, const std::string& where) {
  if (role == "system") return "### System:\n";
  if (role == "user") return "### User:\n";
  if (role == "assistant") return "### Assistant:\n";
  throw DataError(fmt::format("{}: the role \"{}\" is not one of system, user, assistant", where,
                              short_text(role)));
}

SftExample read_messages(const Json& messages, const std::string& where) {
  if (!messages.is_array()) {
    throw DataError(
        fmt::format("{}: the field \"messages\" is {} and not a list of objects with "
                    "role and content",
                    where, messages.type_name()));
  }
  SftExample example;
  SftTurn turn;
  std::size_t number = 0;
  for (const Json& message : messages) {
    const std::string place = fmt::format("{}: message {}", where, ++number);
    if (!message.is_object()) {
      throw DataError(fmt::format("{}: is {} and not an object with role and content", place,
                                  message.type_name()));
    }
    const std::string role = text_field(message, "role", place);
    const std::string content = text_field(message, "content", place);
    turn.prompt += heading_of(role, place);
    if (role != "assistant") {
      turn.prompt += content + "\n\n";
      continue;
    }
    turn.answer = content;
    example.turns.push_back(std::move(turn));
    turn = {};
  }
  return example;
}

SftExample read_instruction(const Json& value, const std::string& where) {
  const std::string instruction = text_field(value, "instruction", where);
  const std::string input = text_field(value, "input", where, true);
  return {
      {{.prompt = sft_prompt(instruction, input), .answer = text_field(value, "output", where)}}};
}

}  // namespace

SftExample read_sft_example(std::string_view line, const std::string& where) {
  const Json value = parse_line(line, where);
  if (!value.is_object()) {
    throw DataError(fmt::format("{}: is {} and not an object", where, value.type_name()));
  }
  const bool is_chat = value.contains("messages");
  if (is_chat && value.contains("instruction")) {
    throw DataError(fmt::format(
        "{}: has both \"messages\" and \"instruction\"; an example is one of them", where));
  }
  if (is_chat) return read_messages(value.at("messages"), where);
  if (value.contains("instruction")) return read_instruction(value, where);
  std::string names;
  for (const auto& item : value.items()) names += (names.empty() ? "" : ", ") + item.key();
  throw DataError(fmt::format(
      "{}: has neither \"instruction\" (with \"output\") nor \"messages\"; its fields: {}", where,
      names.empty() ? "none" : short_text(names)));
}

std::string sft_prompt(const std::string& instruction, const std::string& input) {
  if (input.empty()) {
    return "Below is an instruction that describes a task. Write a response that appropriately "
           "completes the request.\n\n### Instruction:\n" +
           instruction + "\n\n### Response:\n";
  }
  return "Below is an instruction that describes a task, paired with an input that provides "
         "further "
         "context. Write a response that appropriately completes the request.\n\n"
         "### Instruction:\n" +
         instruction + "\n\n### Input:\n" + input + "\n\n### Response:\n";
}

SftTokens encode(const SftExample& example, const Tokenizer& tokenizer) {
  SftTokens out;
  for (const SftTurn& turn : example.turns) {
    tokenizer.encode(turn.prompt, out.tokens);
    out.is_answer.resize(out.tokens.size(), false);
    tokenizer.encode(turn.answer, out.tokens);
    out.tokens.push_back(tokenizer.end_id());
    out.is_answer.resize(out.tokens.size(), !turn.answer.empty());
  }
  return out;
}

std::int64_t count_labels(const SftTokens& example, std::int64_t seq_len) {
  const auto n = static_cast<std::ptrdiff_t>(
      std::min<std::size_t>(example.is_answer.size(), static_cast<std::size_t>(seq_len + 1)));
  if (n < 1) return 0;
  return std::count(example.is_answer.begin() + 1, example.is_answer.begin() + n, true);
}

}  // namespace llm
