#include "src/train/trainer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "src/base/error.h"
#include "tensor/ops/cross_entropy.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr std::int64_t seq_len = 8;

ListedSample sample_of(std::int32_t first_token, std::int32_t label, std::int64_t n_valid) {
  ListedSample sample;
  for (std::int32_t t = 0; t < seq_len; ++t) {
    sample.tokens.push_back(first_token + t);
    sample.labels.push_back(t < n_valid ? label : ignored_label);
  }
  return sample;
}

/// Settings whose weights stay as they are: a learning rate of 0.
Settings frozen_settings(const ModelConfig& model, int dp, std::int64_t n_samples,
                         std::int64_t microbatch_samples) {
  Settings settings = parity_settings(model, dp, {8}, 1, 2);
  settings.optimizer.lr.peak = 0;
  settings.validation = {.interval_steps = 1,
                         .n_steps = 2,
                         .n_samples = n_samples,
                         .microbatch_samples = microbatch_samples};
  return settings;
}

World::Options random_training(const Settings& settings, std::uint64_t delivery_seed = 1) {
  World::Options options;
  options.delivery_seed = delivery_seed;
  const std::int64_t vocab_size = settings.model.vocab_size;
  options.train = [vocab_size](int) {
    return std::make_unique<RandomSamples>(3, vocab_size, seq_len, 10);
  };
  return options;
}

/// The head gives label v the loss v + 1, v = 0 .. 20, whatever comes in.
void set_counting_losses(ModelState& state) {
  const std::size_t head = spec_with(state, Role::head_weight);
  set_weights(state, head, std::vector<float>(weights_of(state)[head].size()));
  double rest = 1;
  for (int v = 0; v < 21; ++v) rest -= std::exp(-(v + 1.0));
  std::vector<float> bias(31, static_cast<float>(std::log(rest / 10)));
  for (int v = 0; v < 21; ++v) bias[static_cast<std::size_t>(v)] = static_cast<float>(-(v + 1));
  set_weights(state, spec_with(state, Role::head_bias), bias);
}

ModelConfig counting_model() {
  ModelConfig model = parity_llama(0.1f);
  model.lm_head_bias = true;
  return model;
}

}  // namespace

TEST_CASE("validation losses 1 to 21 are 11.0 on every number of ranks, also on too many") {
  std::vector<ListedSample> samples;
  for (std::int32_t j = 0; j < 21; ++j) samples.push_back(sample_of(j, j, seq_len));
  for (const std::int64_t microbatch : {1, 4, 8}) {
    for (const int dp : {1, 2, 3, 4, 5}) {
      INFO("dp " << dp << ", validation microbatches of " << microbatch);
      const Settings settings = frozen_settings(counting_model(), dp, 21, microbatch);
      World::Options options = random_training(settings);
      options.prepare = set_counting_losses;
      options.validation = [&](int) { return std::make_unique<ListedSamples>(samples); };
      const Outcome outcome = World(settings, options).run();
      REQUIRE(outcome.validations.size() == 2);
      for (const ValidationMetrics& validation : outcome.validations) {
        CHECK(validation.loss == Approx(11.0).epsilon(1e-6));
        CHECK(validation.n_tokens == 21 * seq_len);
      }
    }
  }
}

TEST_CASE("validation weighs tokens, not samples or ranks") {
  // 2 tokens at loss 1, 8 at 2, 5 at 3.
  const std::vector<ListedSample> samples{sample_of(0, 0, 2), sample_of(1, 1, 8),
                                          sample_of(2, 2, 5)};
  for (const int dp : {1, 2, 3, 4}) {
    const Settings settings = frozen_settings(counting_model(), dp, 3, 1);
    World::Options options = random_training(settings);
    options.prepare = set_counting_losses;
    options.validation = [&](int) { return std::make_unique<ListedSamples>(samples); };
    const Outcome outcome = World(settings, options).run();
    CHECK(outcome.validations.at(0).loss == Approx(33.0 / 15).epsilon(1e-6));
    CHECK(outcome.validations.at(0).n_tokens == 15);
  }
}

TEST_CASE("validation has no dropout, changes no bit of the training and is the same on all dp") {
  std::vector<double> losses;
  for (const int dp : {1, 2, 4}) {
    Settings settings = parity_settings(parity_gpt2(0.3f), dp, {1}, 4 / dp, 5);
    const Outcome without = World(settings, random_training(settings)).run();
    settings.validation = {
        .interval_steps = 2, .n_steps = 5, .n_samples = 7, .microbatch_samples = 1};
    for (std::uint64_t seed = 1; seed <= n_delivery_seeds(20, 20); ++seed) {
      World::Options options = random_training(settings, seed);
      options.validation = [&](int) { return std::make_unique<RandomSamples>(8, 31, seq_len, 10); };
      const Outcome with = World(settings, options).run();
      REQUIRE(difference(with.weights, without.weights) == "");
      REQUIRE(with.losses == without.losses);
      REQUIRE(with.validations.size() == 3);
      CHECK(with.validations[0].step == 1);
      CHECK(with.validations[2].step == 4);
      std::vector<double> now;
      for (const ValidationMetrics& validation : with.validations) now.push_back(validation.loss);
      if (losses.empty()) losses = now;
      REQUIRE(now == losses);
    }
  }
  Settings frozen = frozen_settings(parity_gpt2(0.5f), 2, 7, 2);
  World::Options options = random_training(frozen);
  options.validation = [&](int) { return std::make_unique<RandomSamples>(8, 31, seq_len); };
  const Outcome dropped = World(frozen, options).run();
  frozen.model.dropout = 0;
  const Outcome plain = World(frozen, options).run();
  CHECK(dropped.validations.at(0).loss == plain.validations.at(0).loss);
  CHECK(dropped.validations.at(0).loss == dropped.validations.at(1).loss);
  CHECK(dropped.losses[0] != plain.losses[0]);
}

TEST_CASE("validation that is planned wants a source") {
  Settings settings = frozen_settings(parity_gpt2(), 1, 3, 1);
  CHECK_THROWS_AS(World(settings, random_training(settings)), ContractBroken);
}

TEST_CASE("more than 1,024 microbatches or buckets a step are as good as a few") {
  Settings settings = parity_settings(parity_gpt2(), 1, {1}, 1100, 2);
  settings.model.n_layers = 1;
  set_pipeline(settings);
  const Outcome one = World(settings, random_training(settings)).run();
  settings.grid.dp = settings.partition.dp = 2;
  settings.partition.n_accumulation_steps = 550;
  const Outcome two = World(settings, random_training(settings)).run();
  CHECK(two.n_steps_done == std::vector<std::int64_t>{2, 2});
  CHECK(difference(two.weights, one.weights) == "");

  settings = parity_settings(parity_llama(), 2, {1}, 1, 1);
  settings.model.vocab_size = 150000;
  settings.model.n_layers = 1;
  set_pipeline(settings);
  settings.n_reducer_lanes = 1;
  const Outcome few = World(settings, random_training(settings)).run();
  settings.bucket_bytes = 4;
  REQUIRE(model_layout(settings.model, 4).buckets.size() > 1024);
  const Outcome many = World(settings, random_training(settings)).run();
  CHECK(difference(many.weights, few.weights) == "");
}

TEST_CASE("a stop that one rank asks for ends all ranks after the same step, with its weights") {
  for (const int dp : {1, 2, 4}) {
    for (std::uint64_t seed = 1; seed <= n_delivery_seeds(20, 20); ++seed) {
      INFO("dp " << dp << ", delivery seed " << seed);
      Settings settings = parity_settings(parity_gpt2(0.1f), dp, {1}, 2, 12);
      settings.validation = {
          .interval_steps = 2, .n_steps = 12, .n_samples = 3, .microbatch_samples = 1};
      World::Options options = random_training(settings, seed);
      options.validation = [&](int) { return std::make_unique<RandomSamples>(8, 31, seq_len); };
      bool asked = false;
      options.after_step = [&](std::int64_t step) { asked = asked || step == 4; };
      options.stop_requested = [&](int rank) { return asked && rank == dp - 1; };
      const Outcome outcome = World(settings, options).run();
      const std::int64_t n_done = outcome.n_steps_done[0];
      CHECK(n_done > 5);
      CHECK(n_done <= 8);
      for (int rank = 0; rank < dp; ++rank) {
        CHECK(outcome.n_steps_done[static_cast<std::size_t>(rank)] == n_done);
        CHECK(outcome.stopped[static_cast<std::size_t>(rank)]);
      }
      REQUIRE(outcome.losses.size() == static_cast<std::size_t>(n_done));
      CHECK(outcome.reports.back().stop);
      // The run that was meant to be as long has these weights.
      settings.n_steps = n_done;
      settings.validation = {};
      const Outcome straight = World(settings, random_training(settings, seed)).run();
      CHECK_FALSE(straight.stopped[0]);
      REQUIRE(difference(outcome.weights, straight.weights) == "");
    }
  }
}

TEST_CASE("a stop in the last step is no stop") {
  const Settings settings = parity_settings(parity_gpt2(), 2, {1}, 1, 1);
  World::Options options = random_training(settings);
  options.stop_requested = [](int) { return true; };
  const Outcome outcome = World(settings, options).run();
  CHECK(outcome.n_steps_done == std::vector<std::int64_t>{1, 1});
  CHECK_FALSE(outcome.stopped[0]);
}

TEST_CASE("a step without a valid token is skipped on every rank, as if it had not been") {
  const ListedSample good = sample_of(1, 7, 5), other = sample_of(9, 3, 8);
  const ListedSample empty = sample_of(4, 0, 0);
  const auto run = [](std::vector<ListedSample> samples, std::int64_t n_steps) {
    Settings settings = parity_settings(parity_gpt2(), 2, {1}, 1, n_steps);
    settings.optimizer.lr.n_steps = 20;
    World::Options options;
    options.train = [&](int) { return std::make_unique<ListedSamples>(samples); };
    return World(settings, options).run();
  };
  const Outcome with = run({good, other, empty, empty, other, good}, 3);
  const Outcome without = run({good, other, other, good}, 2);
  CHECK(with.reports[1].skipped);
  CHECK(with.reports[1].n_valid == 0);
  CHECK(with.losses[1] == 0);
  CHECK(with.reports[1].n_updates == 1);
  CHECK(with.reports[2].n_updates == 2);
  CHECK(with.reports[2].lr == without.reports[1].lr);
  CHECK(difference(with.weights, without.weights) == "");
  // One rank without a valid token is no reason to skip.
  const Outcome half = run({good, empty}, 1);
  CHECK_FALSE(half.reports[0].skipped);
  CHECK(half.reports[0].n_valid == 5);
}

TEST_CASE("a gradient that is not finite on one rank makes all ranks skip, and they go on") {
  const auto run = [](std::vector<ListedSample> samples, std::int64_t n_steps) {
    Settings settings = parity_settings(parity_llama(), 2, {1}, 1, n_steps);
    settings.optimizer.lr.n_steps = 20;
    World::Options options;
    options.train = [&](int) { return std::make_unique<ListedSamples>(samples); };
    // Only who reads token 30 sees it.
    options.prepare = [](ModelState& state) {
      const std::size_t embedding = spec_with(state, Role::token_embedding);
      std::vector<float> values = weights_of(state)[embedding];
      values[30 * 16] = std::numeric_limits<float>::infinity();
      set_weights(state, embedding, values);
    };
    return World(settings, options).run();
  };
  ListedSample bad = sample_of(1, 7, 8);
  bad.tokens[3] = 30;
  const ListedSample good = sample_of(2, 5, 8), other = sample_of(9, 3, 8);
  const Outcome with = run({good, other, good, bad, other, good}, 3);
  const Outcome without = run({good, other, other, good}, 2);
  CHECK_FALSE(with.reports[0].skipped);
  CHECK(with.reports[1].skipped);
  CHECK_FALSE(with.reports[2].skipped);
  CHECK(with.reports[2].n_updates == 2);
  CHECK(difference(with.weights, without.weights) == "");
}
