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

Settings five_steps(const ModelConfig& model, int dp, int tp) {
  Settings settings = parity_settings(model, dp, {2, 1}, 1, 5);
  settings.grid.tp = tp;
  settings.optimizer.lr.peak = 1e-3;
  set_pipeline(settings);
  return settings;
}

/// The same four samples a step, however the ranks are.
Settings four_samples(const ModelConfig& model, const Grid& grid, ScheduleKind kind,
                      int zero_stage) {
  Settings settings = five_steps(model, grid.dp, grid.tp);
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

}  // namespace

TEST_CASE("P4: experts on tensor-parallel ranks are within 1e-5 of one rank") {
  struct Case {
    ModelConfig model;
    std::vector<int> tp;
  };
  for (const float dropout : {0.0f, 0.1f}) {
    for (const Case& c : {Case{model_of(4, dropout), {2, 4}}, Case{model_of(3, dropout), {3}},
                          Case{biased_model(6, dropout), {3, 6}}}) {
      const Outcome expected = run_world(five_steps(c.model, 1, 1), 1, 20);
      for (const int tp : c.tp) {
        INFO(c.model.n_experts << " experts, dropout " << dropout << ", tp " << tp);
        const Outcome outcome = run_world(five_steps(c.model, 1, tp), 3, 20);
        check_near(outcome, expected);
        check_same_routers(outcome, expected);
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
  Settings settings = five_steps(model_of(4, 0), 1, 2);
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
    const Outcome expected = run_world(five_steps(model, 1, 1), 1, 20);
    const Outcome outcome = run_world(five_steps(model, 1, 2), 1, 20);
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      CHECK(outcome.losses[i] == Approx(expected.losses[i]).epsilon(0.01));
    }
  }
}

TEST_CASE("routers have the same bits on every tensor-parallel rank after 20 steps") {
  Settings settings = five_steps(biased_model(4, 0.1f), 1, 4);
  settings.n_steps = settings.optimizer.lr.n_steps = 20;
  settings.optimizer.lr.peak = 1e-2;
  // The world joins the ranks' parts and refuses two values of one element.
  CHECK(run_world(settings, 5, 20).reports.back().n_updates == 20);
}
