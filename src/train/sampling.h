#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace llm {

/// How the next token is chosen.
struct Sampling {
  double temperature = 1;  ///< logits are divided by it; 0 takes the largest (the first of equals)
  std::int64_t top_k = 0;  ///< of the likeliest tokens; 0: of all
  double top_p = 1;        ///< of the fewest likeliest tokens that have this probability together
};

/// A token that may be drawn.
struct Candidate {
  std::int32_t id = 0;
  double probability = 0;
};

/// The tokens that may be drawn with their probabilities, which add up to 1, the likeliest first
/// (of equals the lower id): the softmax of logits / temperature over the top_k, cut to top_p of it
/// and divided by what is left. One with probability 1 where temperature is 0. Throws DataError
/// where a logit is not a number or no logit is finite.
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& sampling);

/// The candidate at u in [0, 1) of their sum.
std::int32_t draw(std::span<const Candidate> candidates, double u);

/// A number in [0, 1) for draw `index` of a text: a function of both alone.
double uniform_draw(std::uint64_t seed, std::int64_t index);

}  // namespace llm
