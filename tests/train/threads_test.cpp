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

/// Throws in the middle of a step.
class BreaksOff : public Poller {
 public:
  BreaksOff(const Queue& compute, int n_polls) : compute_(compute), n_left_(n_polls) {}
  bool poll() override {
    if (!compute_.empty() && --n_left_ == 0) throw std::runtime_error("broken off");
    return false;
  }

 private:
  const Queue& compute_;
  int n_left_;
};

void require_same(const Outcome& run, const Outcome& single) {
  REQUIRE(run.losses == single.losses);
  REQUIRE(difference(run.gradients, single.gradients) == "");
  REQUIRE(difference(run.weights, single.weights) == "");
}

}  // namespace

TEST_CASE("a run has the same bits on 1, 2, 3 and 4 threads a rank") {
  for (const ModelConfig& model : {parity_gpt2(0.1f), parity_llama(), parity_mixtral(0.1f)}) {
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
    for (std::uint64_t seed = 1; seed <= n_delivery_seeds(10, 10); ++seed) {
      CAPTURE(n_threads, seed);
      require_same(run_world(settings, seed), single);
    }
  }
}

TEST_CASE("a run that breaks off while threads compute ends with its own error") {
  const Settings settings = wide_settings(parity_gpt2(), 1, 3);
  for (int n_polls = 1; n_polls < 40; n_polls += 3) {
    RandomSamples samples(11, settings.model.vocab_size, settings.seq_len);
    TrainerInputs inputs;
    inputs.train = &samples;
    Loop loop;
    LoopbackNetwork network(loop, 1, 0);
    Trainer trainer(loop, network.rank(0), settings, inputs);
    BreaksOff breaks_off(trainer.compute(), n_polls);
    loop.add_poller(breaks_off);
    trainer.start();
    CHECK_THROWS_WITH(loop.run(), "broken off");
  }
}
