#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "src/model/init.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

ModelConfig deep(ModelConfig model, bool tied) {
  model.n_layers = 8;
  model.tie_embeddings = tied;
  return model;
}

/// `n` microbatches a flush of one sample each but for the first, which has two.
Settings flushes_of(const ModelConfig& model, int dp, int n, int n_flushes) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(n), 1);
  samples.front() = 2;
  return parity_settings(model, dp, samples, n_flushes, 5);
}

struct NamedChoice {
  std::string name;
  PipelineChoice choice;
};

/// Every schedule on `n_ranks`, the interleaved one with as many chunks as 8 blocks allow.
std::vector<NamedChoice> every_schedule(int n_ranks) {
  const auto named = [n_ranks](const char* name, ScheduleKind kind, int n_chunks) {
    return NamedChoice{std::string(name) + " on " + std::to_string(n_ranks) + " ranks",
                       {.schedule = kind, .n_ranks = n_ranks, .n_chunks = n_chunks}};
  };
  return {named("gpipe", ScheduleKind::gpipe, 1),
          named("1f1b", ScheduleKind::one_f_one_b, 1),
          named("interleaved", ScheduleKind::interleaved, 2),
          named("interleaved deep", ScheduleKind::interleaved, std::min(4, 8 / n_ranks)),
          named("zero_bubble", ScheduleKind::zero_bubble, 1),
          named("zero_bubble_v", ScheduleKind::zero_bubble_v, 2)};
}

Settings in_pipeline(Settings settings, const PipelineChoice& choice) {
  set_pipeline(settings, choice);
  return settings;
}

Outcome run_with_validation(const Settings& settings) {
  World::Options options;
  options.train = [&](int) {
    return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len, 20);
  };
  options.validation = options.train;
  return World(settings, std::move(options)).run();
}

/// One run on one rank, and the same in every pipeline of 2, 3 and 4 ranks (and on one rank by
/// every schedule) that is among `cells`.
void check_every_pipeline(const Settings& one, GridCells& cells) {
  const Outcome expected = run_world(one, 1, 20);
  for (const int pp : {1, 2, 3, 4}) {
    for (const NamedChoice& named : every_schedule(pp)) {
      if (!cells.takes_next()) continue;
      INFO(named.name);
      check_same(run_world(in_pipeline(one, named.choice), 7, 20), expected);
    }
  }
}

}  // namespace

TEST_CASE("P2: pipelines of 1 to 4 ranks have the bits of one rank, by every schedule") {
  GridCells cells("pipelines", 7);
  for (const bool tied : {true, false}) {
    for (const float dropout : {0.0f, 0.1f}) {
      for (const int n : {1, 2, 3, 5, 8}) {
        for (const bool recompute : {false, true}) {
          INFO(n << " microbatches, " << (tied ? "tied" : "untied") << ", dropout " << dropout
                 << (recompute ? ", recompute" : ""));
          const Settings one = flushes_of(deep(parity_gpt2(dropout), tied), 1, n, 1);
          const Outcome expected = run_world(one, 1, 20);
          for (const int pp : {1, 2, 3, 4}) {
            for (const NamedChoice& named : every_schedule(pp)) {
              if (!cells.takes_next()) continue;
              INFO(named.name);
              Settings settings = in_pipeline(one, named.choice);
              settings.recompute_blocks = recompute;
              check_same(run_world(settings, static_cast<std::uint64_t>(n), 20), expected);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("P2: pipelines of a Llama with grouped queries have the bits of one rank") {
  GridCells cells("pipelines of a Llama", 5);
  for (const bool tied : {true, false}) {
    check_every_pipeline(flushes_of(deep(parity_llama(0.1f), tied), 1, 4, 1), cells);
  }
}

TEST_CASE("P2: pipelines of tensor-parallel ranks that cut rows have the bits of one stage") {
  GridCells cells("pipelines of tensor-parallel ranks", 5);
  for (const int n : {1, 5}) {
    Settings settings = flushes_of(deep(parity_gpt2(0.1f), true), 1, n, 1);
    settings.grid.tp = 2;
    settings.sequence_parallel = true;
    INFO(n << " microbatches");
    check_every_pipeline(in_pipeline(settings, {}), cells);
  }
}

TEST_CASE("P2: pipelines of a mixture of experts have the bits of one rank, recomputed or not") {
  GridCells cells("pipelines of a mixture", 5);
  for (const bool tied : {true, false}) {
    Settings one = flushes_of(deep(parity_mixtral(0.1f), tied), 1, 4, 1);
    if (tied || full_counts()) check_every_pipeline(one, cells);
    if (tied && !full_counts()) continue;
    one.model.compute = Dtype::bf16;
    one.recompute_blocks = true;
    check_every_pipeline(one, cells);
  }
}

TEST_CASE("the router's losses are told of every block, once, in every layout") {
  const Settings one = flushes_of(deep(parity_mixtral(0.1f), true), 1, 4, 2);
  const Outcome expected = run_world(one, 1, 20);
  REQUIRE(expected.router_losses[0].balance == Approx(1).margin(0.1));
  REQUIRE(expected.router_losses[0].z == Approx(std::log(4) * std::log(4)).epsilon(0.1));
  for (const int dp : {1, 2}) {
    for (const NamedChoice& named : every_schedule(3)) {
      INFO("dp " << dp << ", " << named.name);
      const Settings settings =
          in_pipeline(flushes_of(deep(parity_mixtral(0.1f), true), dp, 4, 2 / dp), named.choice);
      const Outcome outcome = run_world(settings, 1, 20);
      for (std::size_t step = 0; step < 5; ++step) {
        const RouterLosses& router = expected.router_losses[step];
        CHECK(outcome.router_losses[step].balance == Approx(router.balance).epsilon(1e-12));
        CHECK(outcome.router_losses[step].z == Approx(router.z).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("P2: several flushes a step, added as a tree or in sequence, have one rank's bits") {
  GridCells cells("pipelines of several flushes", 5);
  for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
    for (const bool tied : {true, false}) {
      Settings one = flushes_of(deep(parity_gpt2(0.1f), tied), 1, 3, 3);
      one.accumulation = kind;
      check_every_pipeline(one, cells);
    }
  }
}

TEST_CASE("P2: any split of the blocks over the stages has one rank's bits") {
  const Settings one = flushes_of(deep(parity_gpt2(0.1f), true), 1, 4, 1);
  const Outcome expected = run_world(one);
  for (const std::vector<std::int64_t>& n_blocks :
       {std::vector<std::int64_t>{1, 6, 1}, {6, 1, 1}, {1, 1, 6}, {2, 3, 3}}) {
    const PipelineChoice choice{.n_ranks = 3, .n_blocks = n_blocks};
    check_same(run_world(in_pipeline(one, choice)), expected);
  }
}

TEST_CASE("P2, P3: data-parallel pipelines have the bits of data-parallel ranks, and of one") {
  GridCells cells("data-parallel pipelines", 5);
  for (const ModelConfig& model :
       {deep(parity_gpt2(0.1f), true), deep(parity_gpt2(0.1f), false),
        deep(parity_mixtral(0.1f), true), deep(parity_mixtral(0.1f), false)}) {
    const Outcome expected = run_world(flushes_of(model, 1, 2, 4), 1, 20);
    for (const int dp : {2, 4}) {
      const Settings flat = flushes_of(model, dp, 2, 4 / dp);
      check_same(run_world(flat, 1, 20), expected);
      for (const int pp : {2, 3}) {
        for (const NamedChoice& named : every_schedule(pp)) {
          if (!cells.takes_next()) continue;
          INFO("dp " << dp << ", " << named.name << (model.tie_embeddings ? ", tied" : "")
                     << (model.is_mixture() ? ", mixture" : ""));
          check_same(run_world(in_pipeline(flat, named.choice), 3, 20), expected);
        }
      }
    }
  }
}

TEST_CASE("P1: the order of messages changes no bit of a pipeline") {
  const std::uint64_t n_seeds = n_delivery_seeds(300, 40);
  for (const NamedChoice& named : every_schedule(3)) {
    INFO(named.name);
    Settings settings = flushes_of(deep(parity_gpt2(0.1f), true), 2, 4, 2);
    settings.n_steps = settings.optimizer.lr.n_steps = 2;
    settings = in_pipeline(settings, named.choice);
    settings.bucket_bytes = 2048;
    const Outcome expected = run_world(settings, 0, 20);
    for (std::uint64_t seed = 1; seed <= n_seeds; ++seed) {
      INFO("delivery seed " << seed);
      check_same(run_world(settings, seed, 20), expected);
    }
  }
}

TEST_CASE("P2: in bf16 and f16 pipelines have one rank's bits") {
  GridCells cells("pipelines in low precision", 5);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const bool tied : {true, false}) {
      INFO(name_of(dtype));
      ModelConfig model = deep(parity_gpt2(0.1f), tied);
      model.compute = dtype;
      Settings one = flushes_of(model, 1, 3, 2);
      if (dtype == Dtype::f16) one.optimizer.loss_scale = LossScaleConfig{.initial = 1024};
      check_every_pipeline(one, cells);
      one.recompute_blocks = true;
      check_every_pipeline(one, cells);
    }
  }
}

TEST_CASE("f16: an overflow skips the step on every stage, once, and the scale halves") {
  ModelConfig model = deep(parity_gpt2(0.1f), true);
  model.compute = Dtype::f16;
  Settings one = flushes_of(model, 1, 3, 1);
  one.n_steps = one.optimizer.lr.n_steps = 12;
  one.optimizer.loss_scale = LossScaleConfig{.initial = 0x1p24, .growth_interval = 1000};
  const Outcome expected = run_world(one, 1, 20);
  REQUIRE(expected.reports.front().skipped);
  REQUIRE(!expected.reports.back().skipped);
  REQUIRE(expected.reports[1].loss_scale == 0x1p23);
  for (const int pp : {2, 4}) {
    for (const NamedChoice& named : every_schedule(pp)) {
      INFO(named.name);
      check_same(run_world(in_pipeline(one, named.choice), 1, 20), expected);
    }
  }
}

TEST_CASE("a pipeline's validation losses are one rank's, to the bit") {
  GridCells cells("pipelines with validation", 5);
  for (const int dp : {1, 2}) {
    Settings one = flushes_of(deep(parity_gpt2(0.1f), true), dp, 2, 1);
    one.validation = {
        .interval_steps = 2, .n_steps = one.n_steps, .n_samples = 23, .microbatch_samples = 2};
    const Outcome expected = run_with_validation(one);
    REQUIRE(expected.validations.size() == 3);
    for (const int pp : {1, 2, 3, 4}) {
      for (const NamedChoice& named : every_schedule(pp)) {
        if (!cells.takes_next()) continue;
        INFO("dp " << dp << ", " << named.name);
        check_same(run_with_validation(in_pipeline(one, named.choice)), expected);
      }
    }
  }
}

TEST_CASE("a pipeline stops after the step in which any rank asked for it") {
  Settings settings = flushes_of(deep(parity_gpt2(), true), 2, 2, 1);
  set_pipeline(settings, {.n_ranks = 3});
  for (int asking = 0; asking < settings.grid.n_ranks(); ++asking) {
    int n_asked = 0;
    World::Options options;
    options.train = [&](int) { return std::make_unique<RandomSamples>(1, 31, 8); };
    options.stop_requested = [&](int rank) { return rank == asking && ++n_asked == 3; };
    const Outcome outcome = World(settings, std::move(options)).run();
    for (const bool stopped : outcome.stopped) CHECK(stopped);
    for (const std::int64_t n : outcome.n_steps_done) CHECK(n == 3);
  }
}

TEST_CASE("a tied embedding's gradient is that of both its uses, summed over data-parallel ranks") {
  // The same weights, once as one parameter, once as two.
  Settings tied = flushes_of(deep(parity_gpt2(), true), 2, 2, 1);
  tied.n_steps = 1;
  set_pipeline(tied, {.n_ranks = 2});
  Settings untied = tied;
  untied.model.tie_embeddings = false;
  set_pipeline(untied);
  World::Options options;
  options.train = [](int) { return std::make_unique<RandomSamples>(1, 31, 8); };
  const Outcome one = World(tied, options).run();
  const std::vector<ParameterSpec> specs = parameters(untied.model);
  options.prepare = [&](ModelState& state) {
    const Storage drawn(specs.front().n_elements() * 4);
    const MutView values = drawn.view(Dtype::f32, {specs.front().n_elements()});
    initialize(specs.front(), tied.seed, {0, values.n_elements()}, values);
    const float* const first = values.as<float>();
    set_weights(state, spec_with(state, Role::head_weight), {first, first + values.n_elements()});
  };
  const Outcome two = World(untied, options).run();
  REQUIRE(two.losses == one.losses);
  Weights both{two.gradients.front()};
  for (std::size_t i = 0; i < both[0].size(); ++i) both[0][i] += two.gradients.back()[i];
  CHECK(relative_distance({one.gradients.front()}, both) <= 1e-6);
}

TEST_CASE(
    "two stages of two microbatches: one rank's loss, gradients and norm, recomputed or not") {
  for (const bool tied : {true, false}) {
    const Settings one = flushes_of(deep(parity_gpt2(0.1f), tied), 1, 2, 1);
    const Outcome expected = run_world(one);
    for (const bool recompute : {false, true}) {
      for (const NamedChoice& named : every_schedule(2)) {
        INFO(named.name);
        Settings settings = in_pipeline(one, named.choice);
        settings.recompute_blocks = recompute;
        const Outcome two = run_world(settings);
        CHECK(two.losses == expected.losses);
        CHECK(difference(two.gradients, expected.gradients) == "");
        CHECK(two.reports.back().grad_norm == expected.reports.back().grad_norm);
      }
    }
  }
}
