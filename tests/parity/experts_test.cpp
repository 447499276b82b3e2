#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Twelve heads of four and as many experts as asked for.
ModelConfig model_of(std::int64_t n_experts, float dropout) {
  ModelConfig model = parity_mixtral(dropout);
  model.hidden_size = 48;
  model.n_heads = 12;
  model.n_kv_heads = 12;
  model.n_experts = n_experts;
  model.vocab_size = 37;
  return model;
}

/// A mixture of GPT-2's mlps, with biases.
ModelConfig biased_model(std::int64_t n_experts, float dropout) {
  ModelConfig model = model_of(n_experts, dropout);
  model.gated = false;
  model.activation = Activation::gelu_tanh;
  model.mlp_bias = model.qkv_bias = true;
  return model;
}

Settings five_steps_of_experts(const ModelConfig& model, int dp, int tp) {
  Settings settings = parity_settings(model, dp, {2, 1}, 1, 5);
  settings.grid.tp = tp;
  settings.optimizer.lr.peak = 1e-3;
  set_pipeline(settings);
  return settings;
}

/// The same four samples a step, however the ranks are.
Settings four_samples(const ModelConfig& model, const Grid& grid, ScheduleKind kind,
                      int zero_stage) {
  Settings settings = five_steps_of_experts(model, grid.dp, grid.tp);
  settings.partition.microbatch_samples.assign(static_cast<std::size_t>(4 / grid.dp), 1);
  settings.zero_stage = zero_stage;
  settings.unit_min_parameters = 1;
  set_pipeline(settings, {.schedule = kind, .n_ranks = grid.pp});
  return settings;
}

void check_same_routers(const Outcome& outcome, const Outcome& expected) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    CHECK(outcome.router_losses[i].balance ==
          Approx(expected.router_losses[i].balance).epsilon(1e-5));
    CHECK(outcome.router_losses[i].z == Approx(expected.router_losses[i].z).epsilon(1e-5));
  }
}

constexpr ScheduleKind in_order = ScheduleKind::gpipe;

}  // namespace

TEST_CASE("P4: experts on tensor-parallel ranks are within 1e-5 of one rank") {
  struct Case {
    ModelConfig model;
    std::vector<int> tp;
  };
  for (const float dropout : {0.0f, 0.1f}) {
    for (const Case& c : {Case{model_of(4, dropout), {2, 4}}, Case{model_of(3, dropout), {3}},
                          Case{biased_model(6, dropout), {3, 6}}}) {
      const Outcome expected = run_world(five_steps_of_experts(c.model, 1, 1), 1, 20);
      for (const int tp : c.tp) {
        for (const bool sequence : {false, true}) {
          INFO(c.model.n_experts << " experts, dropout " << dropout << ", tp " << tp
                                 << (sequence ? ", rows cut" : ""));
          Settings settings = five_steps_of_experts(c.model, 1, tp);
          settings.sequence_parallel = sequence;
          const Outcome outcome = run_world(settings, 3, 20);
          check_near(outcome, expected);
          check_same_routers(outcome, expected);
        }
      }
    }
  }
}

TEST_CASE("P4: experts inside of data-parallel pipelines, with ZeRO, are within 1e-5 of one rank") {
  ModelConfig model = model_of(4, 0.1f);
  model.n_layers = 4;
  const auto run = [&](Grid grid, ScheduleKind kind, int zero_stage, bool recompute) {
    Settings settings = four_samples(model, grid, kind, zero_stage);
    settings.recompute_blocks = recompute;
    return run_world(settings, 2, 20);
  };
  const Outcome one = run({1, 1, 1}, ScheduleKind::one_f_one_b, 0, false);
  const Outcome flat = run({2, 1, 2}, ScheduleKind::one_f_one_b, 0, false);
  check_near(flat, one);
  check_same_routers(flat, one);
  for (const bool recompute : {false, true}) {
    const auto kind = recompute ? ScheduleKind::one_f_one_b : ScheduleKind::zero_bubble;
    INFO((recompute ? "recomputed" : "zero bubble"));
    const Outcome outcome = run({2, 2, 2}, kind, recompute ? 1 : 3, recompute);
    check_near(outcome, one);
    check_same_routers(outcome, one);
    check_same(outcome, flat);  // P2
  }
}

TEST_CASE("the router's losses train alike whatever share of the experts and tokens a rank has") {
  ModelConfig model = model_of(4, 0);
  model.router_weights = {.balance = 10, .z = 1};  // most of the router's gradient
  const auto run = [&](Grid grid, int n_accumulation_steps, RouterWeights weights) {
    model.router_weights = weights;
    Settings settings = four_samples(model, grid, ScheduleKind::one_f_one_b, 0);
    auto& samples = settings.partition.microbatch_samples;
    samples.resize(samples.size() / static_cast<std::size_t>(n_accumulation_steps));
    settings.partition.n_accumulation_steps = n_accumulation_steps;
    settings.n_steps = settings.optimizer.lr.n_steps = 1;
    set_pipeline(settings, {.n_ranks = grid.pp});
    World::Options options;
    options.train = [&](int) { return std::make_unique<RandomSamples>(11, 37, 8, 20); };
    World world(settings, options);
    Outcome outcome = world.run();
    const std::size_t router = spec_with(world.state(0), Role::router_weight);
    return std::pair(Weights{outcome.gradients[router]}, outcome);
  };
  const auto [expected, one] = run({1, 1, 1}, 1, model.router_weights);
  const auto without = run({1, 1, 1}, 1, {0, 0}).first;
  CHECK(relative_distance(without, expected) > 0.5);
  for (const Grid& grid : {Grid{1, 1, 2}, {1, 1, 4}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}}) {
    for (const int n_accumulation_steps : {1, 2}) {
      INFO("dp " << grid.dp << ", pp " << grid.pp << ", tp " << grid.tp << ", "
                 << n_accumulation_steps << " steps");
      const auto [gradient, outcome] = run(grid, n_accumulation_steps, {.balance = 10, .z = 1});
      CHECK(relative_distance(gradient, expected) < 1e-5);
      check_same_routers(outcome, one);
    }
  }
}

TEST_CASE("experts of other ranks that all tokens visit leave this rank's gradients at exactly 0") {
  Settings settings = five_steps_of_experts(model_of(4, 0), 1, 2);
  settings.optimizer.lr.peak = 0;  // the routers stay even
  settings.partition.microbatch_samples = {1};
  set_pipeline(settings);
  World::Options options;
  options.train = [](int) { return std::make_unique<RandomSamples>(1, 37, 8); };
  options.prepare = [](ModelState& state) {
    for (std::size_t i = 0; i < state.specs().size(); ++i) {
      if (state.specs()[i].role != Role::router_weight) continue;
      set_weights(state, i, std::vector<float>(4 * 48));  // equal logits: experts 0 and 1
    }
  };
  World world(settings, options);
  REQUIRE(world.run().losses.size() == 5);
  for (const Role role : {Role::gate_weight, Role::up_weight, Role::down_weight}) {
    const std::size_t spec = spec_with(world.state(0), role);
    const auto is_zero = [](float x) { return x == 0; };
    const std::vector<float> busy = gradients_of(world.state(0))[spec];
    const std::vector<float> idle = gradients_of(world.state(1))[spec];
    CHECK(std::none_of(busy.begin(), busy.end(), is_zero));
    CHECK(std::all_of(idle.begin(), idle.end(), is_zero));
  }
}

TEST_CASE("low precision leaves experts on tensor-parallel ranks near one rank") {
  for (const Dtype compute : {Dtype::bf16, Dtype::f16}) {
    ModelConfig model = model_of(4, 0);
    model.compute = compute;
    const Outcome expected = run_world(five_steps_of_experts(model, 1, 1), 1, 20);
    const Outcome outcome = run_world(five_steps_of_experts(model, 1, 2), 1, 20);
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      CHECK(outcome.losses[i] == Approx(expected.losses[i]).epsilon(0.01));
    }
  }
}

TEST_CASE("routers have the same bits on every tensor-parallel rank after 20 steps") {
  Settings settings = five_steps_of_experts(biased_model(4, 0.1f), 1, 4);
  settings.n_steps = settings.optimizer.lr.n_steps = 20;
  settings.optimizer.lr.peak = 1e-2;
  // The world joins the ranks' parts and refuses two values of one element.
  CHECK(run_world(settings, 5, 20).reports.back().n_updates == 20);
}

TEST_CASE("P4: experts over data-parallel ranks are within 1e-5 of one rank") {
  for (const float dropout : {0.0f, 0.1f}) {
    for (const bool is_biased : {false, true}) {
      const ModelConfig model = is_biased ? biased_model(8, dropout) : model_of(4, dropout);
      const Outcome one = run_world(four_samples(model, {1, 1, 1}, in_order, 0), 1, 20);
      for (const Grid& grid : {Grid{2, 1, 1}, {4, 1, 1}, {2, 1, 2}, {2, 2, 1}, {2, 2, 2}}) {
        for (const int zero_stage : {0, 1, 2, 3}) {
          Settings settings = four_samples(model, grid, in_order, zero_stage);
          settings.spreads_experts = true;
          INFO(model.n_experts << " experts, dropout " << dropout << ", dp " << grid.dp << ", pp "
                               << grid.pp << ", tp " << grid.tp << ", zero " << zero_stage);
          const Outcome outcome = run_world(settings, 3, 20);
          check_near(outcome, one);
          check_same_routers(outcome, one);
        }
      }
    }
  }
}

TEST_CASE("P1, P2: timing, ZeRO, pipelines and recomputation change no bit of spread experts") {
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    ModelConfig model = model_of(4, 0.1f);
    model.n_layers = 4;
    model.compute = compute;
    const auto settings_of = [&](Grid grid, ScheduleKind kind, int zero_stage) {
      Settings settings = four_samples(model, grid, kind, zero_stage);
      settings.spreads_experts = true;
      return settings;
    };
    const Outcome flat = run_world(settings_of({2, 1, 1}, in_order, 0), 0, 20);
    for (std::uint64_t seed = 1; seed <= n_delivery_seeds(10, 10); ++seed) {
      check_same(run_world(settings_of({2, 1, 1}, in_order, 0), seed, 20), flat);
    }
    struct Case {
      int pp;
      ScheduleKind kind;
      int zero_stage;
      bool recompute;
      std::int64_t bucket_bytes;
    };
    for (const Case c : {Case{1, in_order, 1, false, 4}, Case{1, in_order, 2, true, 1 << 20},
                         Case{2, ScheduleKind::one_f_one_b, 0, true, 8192},
                         Case{2, ScheduleKind::zero_bubble, 2, false, 8192},
                         Case{2, ScheduleKind::zero_bubble, 1, true, 8192},
                         Case{1, in_order, 3, true, 4}, Case{1, in_order, 3, false, 1 << 20},
                         Case{2, ScheduleKind::zero_bubble, 3, false, 8192}}) {
      Settings settings = settings_of({2, c.pp, 1}, c.kind, c.zero_stage);
      settings.recompute_blocks = c.recompute;
      settings.bucket_bytes = c.bucket_bytes;
      INFO("pp " << c.pp << ", zero " << c.zero_stage << (c.recompute ? ", recomputed" : ""));
      check_same(run_world(settings, 3, 20), flat);
      settings.shares_memory = true;
      check_same(run_world(settings, 4, 20), flat);
    }
  }
}

TEST_CASE("ranks whose experts nobody visits, and whose tokens go elsewhere, stall nobody") {
  for (const int zero_stage : {0, 1}) {
    Settings settings = four_samples(model_of(8, 0), {4, 1, 1}, in_order, zero_stage);
    settings.spreads_experts = true;
    settings.optimizer.lr.peak = 0;  // the routers stay even
    World::Options options;
    options.train = [](int) { return std::make_unique<RandomSamples>(1, 37, 8); };
    options.prepare = [](ModelState& state) {
      for (std::size_t i = 0; i < state.specs().size(); ++i) {
        if (state.specs()[i].role != Role::router_weight) continue;
        set_weights(state, i, std::vector<float>(8 * 48));  // experts 0 and 1, of rank 0
      }
    };
    World world(settings, options);
    const Outcome outcome = world.run();
    REQUIRE(outcome.losses.size() == 5);
    const std::vector<float>& all = outcome.gradients[spec_with(world.state(0), Role::up_weight)];
    const auto busy = static_cast<std::ptrdiff_t>(all.size() / 4);
    const auto is_zero = [](float x) { return x == 0; };
    CHECK(std::none_of(all.begin(), all.begin() + busy, is_zero));
    CHECK(std::all_of(all.begin() + busy, all.end(), is_zero));
  }
}

TEST_CASE("validation on ranks with spread experts sees one rank's losses, whoever has how many") {
  const auto run = [](Grid grid, int n_samples, int zero_stage) {
    Settings settings = four_samples(model_of(4, 0.1f), grid, in_order, zero_stage);
    settings.spreads_experts = grid.dp > 1;
    settings.validation = {
        .interval_steps = 2, .n_steps = 5, .n_samples = n_samples, .microbatch_samples = 2};
    set_pipeline(settings, {.n_ranks = grid.pp});
    World::Options options;
    options.train = [](int) { return std::make_unique<RandomSamples>(11, 37, 8, 20); };
    options.validation = options.train;
    int n_asked = 0;
    const int last = grid.n_ranks() - 1;
    options.stop_requested = [n_asked, last](int rank) mutable {
      return rank == last && ++n_asked == 4;
    };
    return World(settings, std::move(options)).run();
  };
  for (const int n_samples : {1, 5, 8}) {  // of 1 one rank has all; of 5 the last is half as large
    const Outcome expected = run({1, 1, 1}, n_samples, 0);
    for (const Grid& grid : {Grid{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}}) {
      INFO(n_samples << " samples, dp " << grid.dp << ", pp " << grid.pp << ", tp " << grid.tp);
      const Outcome outcome = run(grid, n_samples, n_samples == 5 ? 3 : 0);
      REQUIRE(outcome.losses.size() == expected.losses.size());
      REQUIRE(outcome.validations.size() == expected.validations.size());
      for (std::size_t i = 0; i < expected.validations.size(); ++i) {
        CHECK(outcome.validations[i].n_tokens == expected.validations[i].n_tokens);
        CHECK(outcome.validations[i].loss == Approx(expected.validations[i].loss).epsilon(1e-5));
      }
    }
  }
}
