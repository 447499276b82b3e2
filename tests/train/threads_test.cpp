// threads_per_rank changes no bit of a run.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "tests/parity/world.h"

using namespace llm;

namespace {

/// A model wide enough that its products, too, are cut into several tiles.
ModelConfig wide(ModelConfig model) {
  model.hidden_size = 128;
  model.intermediate_size = 1024;
  model.vocab_size = 1000;
  model.max_seq_len = 128;
  return model;
}

Settings wide_settings(const ModelConfig& model, int dp, int threads_per_rank) {
  Settings settings = parity_settings(wide(model), dp, {12}, 1, 2);
  settings.seq_len = 128;
  settings.threads_per_rank = threads_per_rank;
  return settings;
}

void require_same(const Outcome& run, const Outcome& single) {
  REQUIRE(run.losses == single.losses);
  REQUIRE(difference(run.gradients, single.gradients) == "");
  REQUIRE(difference(run.weights, single.weights) == "");
}

}  // namespace

TEST_CASE("a run has the same bits on 1, 2, 3 and 4 threads a rank") {
  for (const ModelConfig& model : {parity_gpt2(0.1f), parity_llama()}) {
    const Outcome single = run_world(wide_settings(model, 1, 1), 1, 10);
    for (const int n_threads : {2, 3, 4}) {
      CAPTURE(n_threads);
      require_same(run_world(wide_settings(model, 1, n_threads), 1, 10), single);
    }
  }
}

TEST_CASE("ranks of many threads have one thread's bits under every order of deliveries") {
  Settings settings = parity_settings(parity_gpt2(0.1f), 2, {1, 2}, 2, 4);
  const Outcome single = run_world(settings);
  for (const int n_threads : {2, 4}) {
    settings.threads_per_rank = n_threads;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(n_threads, seed);
      require_same(run_world(settings, seed), single);
    }
  }
}

TEST_CASE("a run that breaks off while threads compute ends with its own error") {
  const Settings settings = wide_settings(parity_gpt2(), 2, 3);
  World::Options options;
  options.train = [&](int) {
    return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len);
  };
  options.after_step = [](std::int64_t) { throw std::runtime_error("broken off"); };
  CHECK_THROWS_WITH(World(settings, options).run(), "broken off");
}
