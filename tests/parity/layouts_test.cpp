#include <catch2/catch.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

struct NamedModel {
  std::string name;
  ModelConfig model;
};

/// Both families and a mixture, tied and not, without and with dropout.
std::vector<NamedModel> parity_models() {
  std::vector<NamedModel> models;
  for (const float dropout : {0.0f, 0.1f}) {
    const std::string suffix = dropout > 0 ? ", dropout" : "";
    for (const bool tied : {true, false}) {
      for (NamedModel base :
           {NamedModel{"gpt2", parity_gpt2(dropout)}, NamedModel{"llama", parity_llama(dropout)},
            NamedModel{"mixtral", parity_mixtral(dropout)}}) {
        base.model.tie_embeddings = tied;
        base.name += (tied ? ", tied" : ", head apart") + suffix;
        models.push_back(base);
      }
    }
  }
  return models;
}

/// Tensors of several chunks, so that buckets cut within them.
ModelConfig wide_gpt2() {
  ModelConfig model = parity_gpt2(0.1f);
  model.hidden_size = 32;
  model.intermediate_size = 300;
  model.vocab_size = 263;
  return model;
}

/// Twelve microbatches of 2, 1 or 1 samples a step over `dp` ranks.
Settings twelve_microbatches(const ModelConfig& model, int dp) {
  return parity_settings(model, dp, {2, 1, 1}, 4 / dp, 5);
}

}  // namespace

TEST_CASE("P1: the order of messages changes no bit") {
  const std::uint64_t n_seeds = n_delivery_seeds(1000, 500);
  for (const int dp : {2, 4}) {
    Settings settings = parity_settings(parity_gpt2(0.1f), dp, {1}, 2, 2);
    settings.model.n_layers = 1;
    set_pipeline(settings);
    settings.bucket_bytes = 2048;
    settings.n_reducer_lanes = 3;
    const Outcome expected = run_world(settings, 0, 20);
    for (std::uint64_t seed = 1; seed <= n_seeds; ++seed) {
      INFO("dp " << dp << ", delivery seed " << seed);
      check_same(run_world(settings, seed, 20), expected);
    }
    std::printf("P1: dp %d: %d delivery seeds\n", dp, static_cast<int>(n_seeds));
  }
}

TEST_CASE("P1: the order of messages changes no bit when microbatches are added in sequence") {
  Settings settings = parity_settings(parity_llama(), 4, {1}, 3, 2);
  settings.accumulation = Accumulation::sequential;
  const Outcome expected = run_world(settings, 0);
  for (std::uint64_t seed = 1; seed <= n_delivery_seeds(25, 25); ++seed)
    check_same(run_world(settings, seed), expected);
}

TEST_CASE("P2: the size of buckets changes no bit") {
  for (const int dp : {1, 2, 3, 4}) {
    Settings settings = parity_settings(wide_gpt2(), dp, {1}, 3, 3);
    settings.bucket_bytes = std::int64_t{1} << 40;
    const Outcome whole = run_world(settings);
    std::size_t n_buckets = model_layout(settings.model, settings.bucket_bytes).buckets.size();
    REQUIRE(n_buckets == 1);
    for (const std::int64_t bucket_bytes : {4, 16384, 50000, 1 << 20}) {
      INFO("dp " << dp << ", buckets of " << bucket_bytes << " bytes");
      settings.bucket_bytes = bucket_bytes;
      if (bucket_bytes == 4) {
        n_buckets = model_layout(settings.model, bucket_bytes).buckets.size();
        REQUIRE(n_buckets > parameters(settings.model).size());
      }
      check_same(run_world(settings), whole);
    }
  }
}

TEST_CASE("P1 to P3: gradients added where they lie have the bits of those that were sent") {
  for (const int dp : {1, 2, 3, 4}) {
    Settings settings = twelve_microbatches(parity_gpt2(0.1f), dp);
    settings.bucket_bytes = 4096;
    const Outcome sent = run_world(settings);
    settings.shares_memory = true;
    for (std::uint64_t seed = 1; seed <= n_delivery_seeds(25, 25); ++seed) {
      INFO("dp " << dp << ", delivery seed " << seed);
      check_same(run_world(settings, seed), sent);
    }
    settings.bucket_bytes = std::int64_t{1} << 40;
    settings.n_reducer_lanes = 3;  // two of them without a bucket
    check_same(run_world(settings), sent);
    if (dp == 3) continue;
    settings.accumulation = Accumulation::tree;
    check_same(run_world(settings), run_world(twelve_microbatches(parity_gpt2(0.1f), 1)));
  }
}

TEST_CASE("P2: the number of reducer lanes changes no bit") {
  for (const int dp : {2, 3, 4}) {
    Settings settings = parity_settings(parity_gpt2(0.1f), dp, {2, 1}, 1, 3);
    settings.bucket_bytes = 4;
    settings.n_reducer_lanes = 1;
    const Outcome expected = run_world(settings);
    for (const int n_lanes : {2, 3, 7}) {
      INFO("dp " << dp << ", " << n_lanes << " lanes");
      settings.n_reducer_lanes = n_lanes;
      check_same(run_world(settings), expected);
    }
  }
}

TEST_CASE("P2: how microbatches fall into accumulation steps changes no bit") {
  for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
    Settings settings = parity_settings(parity_gpt2(0.1f), 2, {1}, 12, 3);
    settings.accumulation = kind;
    const Outcome expected = run_world(settings, 1, 20);
    for (const int per_flush : {2, 3, 4, 6, 12}) {
      INFO(per_flush << " microbatches a flush");
      settings.partition.microbatch_samples.assign(static_cast<std::size_t>(per_flush), 1);
      settings.partition.n_accumulation_steps = 12 / per_flush;
      set_pipeline(settings);
      check_same(run_world(settings, 1, 20), expected);
    }
  }
}

TEST_CASE("P3: dp of 1, 2 and 4 with 12, 6 and 3 microbatches a rank have the same bits") {
  for (const NamedModel& named : parity_models()) {
    for (const std::uint32_t ignored_percent : {0u, 30u}) {
      const Outcome expected = run_world(twelve_microbatches(named.model, 1), 1, ignored_percent);
      REQUIRE(expected.losses.size() == 5);
      REQUIRE(expected.reports.back().n_updates == 5);
      for (const int dp : {2, 4}) {
        INFO(named.name << ", dp " << dp << ", " << ignored_percent << " % ignored");
        check_same(run_world(twelve_microbatches(named.model, dp), 1, ignored_percent), expected);
      }
    }
  }
}

TEST_CASE("P3: dp of 8 and 16 have the bits of dp 1") {
  const ModelConfig model = parity_gpt2(0.1f);
  const Outcome expected = run_world(parity_settings(model, 1, {1}, 16, 3));
  for (const int dp : {8, 16}) {
    INFO("dp " << dp);
    check_same(run_world(parity_settings(model, dp, {1}, 16 / dp, 3)), expected);
  }
}

TEST_CASE("P3: dp of 3 with 4 microbatches a rank is within 1e-6 of dp 1") {
  for (const NamedModel& named : parity_models()) {
    INFO(named.name);
    const auto run = [&](int dp) {
      Settings settings = parity_settings(named.model, dp, {1}, 12 / dp, 5);
      // A usual rate: AdamW's first steps turn a tiny gradient's rounding into a whole step.
      settings.optimizer.lr.peak = 1e-3;
      return run_world(settings, 1, 20);
    };
    const Outcome one = run(1);
    const Outcome three = run(3);
    CHECK(relative_distance(three.weights, one.weights) <= 1e-6);
    for (std::size_t step = 0; step < 5; ++step) {
      CHECK(three.losses[step] == Approx(one.losses[step]).epsilon(1e-6));
    }
  }
}

TEST_CASE("gradients added in sequence are within 1e-6 of the tree's") {
  for (const NamedModel& named : parity_models()) {
    INFO(named.name);
    Settings settings = parity_settings(named.model, 2, {1}, 6, 1);
    const Outcome tree = run_world(settings, 1, 20);
    settings.accumulation = Accumulation::sequential;
    const Outcome sequential = run_world(settings, 1, 20);
    CHECK(relative_distance(sequential.gradients, tree.gradients) <= 1e-6);
    CHECK(sequential.losses == tree.losses);
  }
}

TEST_CASE("dropout draws other masks for other samples and for another step") {
  // All samples alike: were masks shared by ranks or microbatches, their losses would be equal.
  Settings settings = parity_settings(parity_gpt2(0.5f), 2, {1}, 1, 2);
  settings.optimizer.lr.peak = 0;
  World::Options options;
  const ListedSample sample{{1, 2, 3, 4, 5, 6, 7, 8}, {2, 3, 4, 5, 6, 7, 8, 9}};
  options.train = [&](int) {
    return std::make_unique<ListedSamples>(std::vector<ListedSample>{sample});
  };
  const Outcome two = World(settings, options).run();
  CHECK(two.losses[0] != two.losses[1]);
  settings.grid.dp = settings.partition.dp = 1;
  const Outcome one = World(settings, options).run();
  // The mean over two samples is the loss of one only if both have the same mask.
  CHECK(one.losses[0] != two.losses[0]);
}
