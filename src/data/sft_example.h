#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/tokenizer.h"

namespace llm {

/// One example of supervised fine-tuning as the template writes it: prompts and answers in turn.
/// An answer is trained on, with the end token after it.
struct SftTurn {
  std::string prompt;  ///< everything since the answer before, to where this answer begins
  std::string answer;
};
struct SftExample {
  std::vector<SftTurn> turns;
};

/// Reads a line of JSON in one of two forms (docs/sft.md has the template of each):
///   {"instruction": TEXT, "input": TEXT, "output": TEXT}       `input` may lack, be null or empty
///   {"messages": [{"role": "system"|"user"|"assistant", "content": TEXT}, ...]}
/// Other fields are passed over. Messages after the last answer are dropped: nothing follows that
/// could be learned. DataError, which begins with `where` (file:line), names what is missing, of
/// another type, or both forms at once.
SftExample read_sft_example(std::string_view line, const std::string& where);

/// The prompt that an answer to this instruction follows; `input` may be empty.
std::string sft_prompt(const std::string& instruction, const std::string& input);

/// Names the template; part of what a checkpoint compares.
inline constexpr const char* sft_template = "alpaca and chat, 1";

/// An example as tokens. A position t is trained on where tokens[t + 1] is answered.
struct SftTokens {
  std::vector<std::int32_t> tokens;
  std::vector<bool> is_answer;  ///< of each token: of an answer, or the end token after one
};

/// Prompts and answers are encoded apart, as plain text (the spelling of a special token is not
/// that token); the end token follows each answer. An answer without text teaches nothing: its end
/// token is there, and is no answer.
SftTokens encode(const SftExample& example, const Tokenizer& tokenizer);

/// How many of the first `seq_len` labels (tokens[1 ...]) are answers.
std::int64_t count_labels(const SftTokens& example, std::int64_t seq_len);

}  // namespace llm
