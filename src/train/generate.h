#pragma once
#include <cstdint>
#include <string>

#include "src/data/tokenizer.h"
#include "src/model/decoder.h"

namespace llm {

struct GenerateOptions {
  std::int64_t n_tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 42;
  std::int32_t end_id = -1;   ///< ends the text; -1: none does
  std::int64_t window = 128;  ///< tokens of context at most, <= the model's max_seq_len
};

/// The values of all layers, by layer + 1, as a ModelState gives them.
using AllValues = std::vector<Values>;

/// `prompt` continued by `n_tokens` tokens at most, drawn with the temperature by a counter-based
/// generator: a function of weights, prompt and seed. Computes the whole window for each token.
std::string generate(const Decoder& decoder, const AllValues& values, const Tokenizer& tokenizer,
                     const std::string& prompt, const GenerateOptions& options);

}  // namespace llm
