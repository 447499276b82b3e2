#include "src/train/sampling.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "src/base/error.h"

using namespace llm;

namespace {

/// Logits whose softmax is the given distribution.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

void check(const std::vector<Candidate>& found, const std::vector<Candidate>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO(i);
    CHECK(found[i].id == expected[i].id);
    CHECK(found[i].probability == Approx(expected[i].probability).epsilon(1e-5));
  }
}

const std::vector<float> five = logits_of({0.1, 0.4, 0.05, 0.3, 0.15});

}  // namespace

TEST_CASE("without a cut all tokens have their softmax, the likeliest first") {
  check(candidates(five, {}), {{1, 0.4}, {3, 0.3}, {4, 0.15}, {0, 0.1}, {2, 0.05}});
}

TEST_CASE("top-k keeps the k likeliest in their proportion") {
  check(candidates(five, {.top_k = 2}), {{1, 4 / 7.0}, {3, 3 / 7.0}});
  CHECK(candidates(five, {.top_k = 5}).size() == 5);
  CHECK(candidates(five, {.top_k = 50}).size() == 5);
  check(candidates(five, {.top_k = 1}), {{1, 1}});
}

TEST_CASE("top-p keeps the fewest likeliest that have p together, and never none") {
  check(candidates(five, {.top_p = 0.69}), {{1, 4 / 7.0}, {3, 3 / 7.0}});
  CHECK(candidates(five, {.top_p = 0.71}).size() == 3);
  check(candidates(five, {.top_p = 0.01}), {{1, 1}});
  // Of what top-k left.
  check(candidates(five, {.top_k = 2, .top_p = 0.5}), {{1, 1}});
}

TEST_CASE("the temperature flattens or sharpens, and 0 takes the largest") {
  check(candidates(logits_of({0.8, 0.2}), {.temperature = 0.5}), {{0, 16 / 17.0}, {1, 1 / 17.0}});
  check(candidates(logits_of({0.8, 0.2}), {.temperature = 2}), {{0, 2 / 3.0}, {1, 1 / 3.0}});
  check(candidates(five, {.temperature = 0, .top_k = 3}), {{1, 1}});
  const std::vector<float> equal{1, 7, 7, 2};
  check(candidates(equal, {.temperature = 0}), {{1, 1}});
  check(candidates(equal, {.temperature = 1e-6}), {{1, 0.5}, {2, 0.5}, {3, 0}, {0, 0}});
}

TEST_CASE("tokens are drawn as often as they are likely, and never what was cut") {
  std::map<std::int32_t, int> counts;
  const std::vector<Candidate> some = candidates(five, {.top_k = 3});
  constexpr int n = 20000;
  for (int i = 0; i < n; ++i) ++counts[draw(some, uniform_draw(1, i))];
  CHECK(counts.size() == 3);
  for (const Candidate& one : some) {  // five standard deviations
    const double expected = n * one.probability;
    CHECK(std::abs(counts[one.id] - expected) < 5 * std::sqrt(expected * (1 - one.probability)));
  }
}

TEST_CASE(
    "the ends of the unit interval are candidates, and one without probability is not drawn") {
  const std::vector<Candidate> some{{5, 0.5}, {6, 0.5}, {7, 0}};
  CHECK(draw(some, 0) == 5);
  CHECK(draw(some, 0.5) == 6);
  CHECK(draw(some, std::nextafter(1.0, 0.0)) == 6);
  CHECK(draw(some, 1.0) == 6);
}

TEST_CASE("draws are a function of seed and index, in [0, 1)") {
  CHECK(uniform_draw(1, 0) == uniform_draw(1, 0));
  CHECK(uniform_draw(1, 0) != uniform_draw(2, 0));
  CHECK(uniform_draw(1, 0) != uniform_draw(1, 1));
  for (int i = 0; i < 1000; ++i) {
    CHECK(uniform_draw(9, i) >= 0);
    CHECK(uniform_draw(9, i) < 1);
  }
}

TEST_CASE("logits that are no numbers are refused, minus infinity is never drawn") {
  const float nan = std::nanf("");
  CHECK_THROWS_AS(candidates(std::vector<float>{1, nan}, {}), DataError);
  CHECK_THROWS_AS(candidates(std::vector<float>{INFINITY, 1}, {}), DataError);
  CHECK_THROWS_AS(candidates(std::vector<float>{-INFINITY, -INFINITY}, {}), DataError);
  check(candidates(std::vector<float>{-INFINITY, 1}, {}), {{1, 1}, {0, 0}});
}
