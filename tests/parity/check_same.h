#pragma once
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/parity/world.h"

namespace llm {

/// Bit by bit: weights, losses, and what the optimizer said of each step.
inline void check_same(const Outcome& a, const Outcome& b) {
  REQUIRE(difference(a.weights, b.weights) == "");
  REQUIRE(a.losses == b.losses);
  REQUIRE(a.reports.size() == b.reports.size());
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    // A skipped step's norm may be NaN, which equals nothing.
    const bool is_number = !std::isnan(b.reports[i].grad_norm);
    REQUIRE((is_number ? a.reports[i].grad_norm == b.reports[i].grad_norm
                       : std::isnan(a.reports[i].grad_norm)));
    REQUIRE(a.reports[i].skipped == b.reports[i].skipped);
    REQUIRE(a.reports[i].loss_scale == b.reports[i].loss_scale);
    REQUIRE(a.reports[i].lr == b.reports[i].lr);
    REQUIRE(a.reports[i].n_valid == b.reports[i].n_valid);
  }
  REQUIRE(a.validations.size() == b.validations.size());
  for (std::size_t i = 0; i < a.validations.size(); ++i) {
    REQUIRE(a.validations[i].loss == b.validations[i].loss);
    REQUIRE(a.validations[i].n_tokens == b.validations[i].n_tokens);
  }
}

/// Within 1e-5 of `expected`: weights after all steps, gradients of the last one, losses, norms.
inline void check_near(const Outcome& outcome, const Outcome& expected) {
  CHECK(relative_distance(outcome.weights, expected.weights) < 1e-5);
  CHECK(relative_distance(outcome.gradients, expected.gradients) < 1e-5);
  REQUIRE(outcome.losses.size() == expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    CHECK(outcome.losses[i] == Approx(expected.losses[i]).epsilon(1e-5));
    CHECK(outcome.reports[i].grad_norm == Approx(expected.reports[i].grad_norm).epsilon(1e-5));
    CHECK(outcome.reports[i].n_valid == expected.reports[i].n_valid);
  }
}

}  // namespace llm
