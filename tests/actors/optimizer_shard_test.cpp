#include "actors/optimizer_shard.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>

#include "src/comm/loopback/loopback.h"
#include "tests/actors/rig.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

struct Options {
  ModelConfig model = parity_gpt2();
  OptimizerConfig optimizer;
  int dp = 1;
  int exponent = 0;
  std::int64_t n_steps = 1;
};

OptimizerConfig plain_optimizer() {
  OptimizerConfig config;
  config.lr = {.shape = LrShape::constant, .peak = 1e-3};
  config.weight_decay = 0.1;
  config.clip_norm = 0;
  return config;
}

OptimizerShard::Plan plan_of(const Options& options) {
  OptimizerShard::Plan plan;
  plan.config = options.optimizer;
  plan.n_ranks = options.dp;
  plan.loss_scale_exponent = options.exponent;
  plan.n_steps = options.n_steps;
  return plan;
}

/// All f32 weights of a state that has them whole.
MutView values_of(const ModelState& state) {
  const MutView bytes = state.compute_bytes({0, state.layout().n_elements});
  return {bytes.data(), Dtype::f32, {bytes.n_bytes() / 4}};
}

/// An optimizer shard whose gradients and messages come by hand.
class Update {
 public:
  explicit Update(const Options& options)
      : dp_(options.dp),
        state_(options.model, 2048, 1),
        network_(rig_.loop, 1, 0),
        alone_(network_.rank(0), {0}),
        squares_(alone_, alone_, alone_, {.parameters_by_rank = {state_.canonical()}}, state_),
        optimizer_(rig_.loop, rig_.queue, rig_.queue, plan_of(options), state_, squares_,
                   {updated_.port(), report_.port()}) {
    fill(values_of(state_), 1);
    rig_.loop.spawn("optimizer", optimizer_.run());
  }

  ModelState& state() { return state_; }
  static void fill(const MutView& flat, float value) {
    std::fill_n(flat.as<float>(), flat.n_elements(), value);
  }
  void fill_gradients(float value) { fill(state_.flat_gradients(0), value); }
  std::int64_t n_buckets() const {
    return static_cast<std::int64_t>(state_.layout().buckets.size());
  }
  void facts(std::int64_t step, int rank, StepFacts facts) {
    optimizer_.step_facts().put(step * dp_ + rank, facts);
    rig_.loop.run_until_idle();
  }
  void reduced(std::int64_t step, std::int64_t bucket) {
    optimizer_.reduced().put(step * n_buckets() + bucket, Ready{});
    rig_.loop.run_until_idle();
  }
  void all_reduced(std::int64_t step) {
    for (std::int64_t b = n_buckets(); b > 0; --b) reduced(step, b - 1);
  }
  /// One step with everything at hand.
  StepReport step(std::int64_t step, std::int64_t n_valid) {
    for (int rank = 0; rank < dp_; ++rank) facts(step, rank, {rank == 0 ? n_valid : 0, 0});
    all_reduced(step);
    REQUIRE(report_.keys.back() == step);
    REQUIRE(updated_.keys.back() == step + 1);
    return report_.messages.back();
  }
  const Sent<ParametersUpdated>& updated() const { return updated_; }
  const Sent<StepReport>& reports() const { return report_; }

 private:
  int dp_;
  Rig rig_;
  ModelState state_;
  LoopbackNetwork network_;
  Group alone_;
  SquareSums squares_;
  Sent<ParametersUpdated> updated_;
  Sent<StepReport> report_;
  OptimizerShard optimizer_;
};

float first_value(const ModelState& state, Role role) {
  return weights_of(state)[spec_with(state, role)].front();
}

std::vector<float> flat_values(const MutView& flat) {
  return {flat.as<float>(), flat.as<float>() + flat.n_elements()};
}

}  // namespace

TEST_CASE("AdamW's first step: 0.9989 on matrices, 0.9990 on norms, biases and embeddings") {
  for (const bool decay_embeddings : {false, true}) {
    for (ModelConfig model : {parity_gpt2(), parity_llama()}) {
      model.lm_head_bias = true;
      for (const bool tied : {true, false}) {
        model.tie_embeddings = tied;
        Options options{.model = model, .optimizer = plain_optimizer()};
        options.optimizer.decay_embeddings = decay_embeddings;
        Update shard(options);
        shard.fill_gradients(0.5f);
        const StepReport report = shard.step(0, 1);
        CHECK(report.lr == 1e-3);
        CHECK(report.n_updates == 1);
        CHECK_FALSE(report.skipped);
        int n_decayed = 0;
        const auto& specs = shard.state().specs();
        const Weights weights = weights_of(shard.state());
        for (std::size_t i = 0; i < specs.size(); ++i) {
          INFO(specs[i].name);
          const bool is_embedding =
              specs[i].role == Role::token_embedding || specs[i].role == Role::position_embedding;
          const bool decays = is_embedding ? decay_embeddings : specs[i].shape.n_dims() == 2;
          n_decayed += decays ? 1 : 0;
          for (const float w : weights[i]) {
            REQUIRE(w == Approx(decays ? 0.9989 : 0.9990).margin(1e-7));
          }
        }
        CHECK(n_decayed > 0);
      }
    }
  }
}

TEST_CASE("the gradient is the sum over tokens divided by the valid tokens of all ranks") {
  // Each token's loss was scaled by 2^-3; 6 tokens on rank 0 and 2 on rank 1.
  Options options{.optimizer = plain_optimizer(), .dp = 2, .exponent = 3};
  Update shard(options);
  shard.fill_gradients(0.25f);
  shard.facts(0, 1, {2, 0});
  shard.facts(0, 0, {6, 0});
  shard.all_reduced(0);
  const StepReport report = shard.reports().messages.at(0);
  CHECK(report.n_valid == 8);
  // Every element's mean gradient is 0.25 * 8 / 8.
  const auto n = static_cast<double>(n_parameters(options.model));
  CHECK(report.grad_norm == Approx(0.25 * std::sqrt(n)).epsilon(1e-6));
  CHECK(shard.state().flat_m().as<float>()[0] == Approx(0.1 * 0.25).epsilon(1e-6));
}

TEST_CASE("a norm above the clip scales every gradient, and the report has the norm before it") {
  Options options{.optimizer = plain_optimizer()};
  options.optimizer.clip_norm = 1;
  Update shard(options);
  shard.fill_gradients(0);
  float* const gradients = shard.state().flat_gradients(0).as<float>();
  const std::int64_t other = shard.state().layout().tensor_begin[5];
  gradients[0] = 3;
  gradients[other] = 4;
  CHECK(shard.step(0, 1).grad_norm == 5);
  CHECK(shard.state().flat_m().as<float>()[0] == Approx(0.1 * 3 * 0.2).epsilon(1e-6));
  CHECK(shard.state().flat_m().as<float>()[other] == Approx(0.1 * 4 * 0.2).epsilon(1e-6));
}

TEST_CASE("a norm below the clip, or a clip of 0, scales nothing") {
  for (const double clip_norm : {0.0, 5.0, 6.0}) {
    Options options{.optimizer = plain_optimizer()};
    options.optimizer.clip_norm = clip_norm;
    Update shard(options);
    shard.fill_gradients(0);
    shard.state().flat_gradients(0).as<float>()[0] = 5;
    CHECK(shard.step(0, 1).grad_norm == 5);
    CHECK(shard.state().flat_m().as<float>()[0] == Approx(0.5).epsilon(1e-6));
  }
}

TEST_CASE("step_scale: closed forms, and what makes every rank skip") {
  const StepScale scale = step_scale(25.0, 10, 1, 0.5);
  CHECK(scale.grad_norm == 1.0);   // 5 * 2 / 10
  CHECK(scale.grad_scale == 0.1);  // 2 / 10 * 0.5 / 1
  CHECK_FALSE(scale.skip);
  CHECK(step_scale(25.0, 0, 1, 0.5).skip);
  CHECK(step_scale(std::numeric_limits<double>::infinity(), 10, 1, 0.5).skip);
  CHECK(step_scale(std::numeric_limits<double>::quiet_NaN(), 10, 1, 0.5).skip);
  CHECK(step_scale(0.0, 10, 1, 0.5).grad_scale == 0.2);
}

TEST_CASE("a tied embedding counts once in the norm: its two uses share an accumulator") {
  Options options{.optimizer = plain_optimizer()};
  Update shard(options);
  const Gradients head = shard.state().gradients(head_layer(options.model), 0);
  const Gradients embedding = shard.state().gradients(embedding_layer, 0);
  CHECK(head[Role::head_weight].data() == embedding[Role::token_embedding].data());
  shard.fill_gradients(0);
  head[Role::head_weight].as<float>()[7] += 1;
  embedding[Role::token_embedding].as<float>()[7] += 2;
  CHECK(shard.step(0, 1).grad_norm == 3);  // not sqrt(5)
}

TEST_CASE("no valid token, or a gradient that is not finite: nothing moves, neither t nor lr") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    Options options{.optimizer = plain_optimizer(), .n_steps = 3};
    options.optimizer.lr = {
        .shape = LrShape::linear, .peak = 1e-3, .warmup_steps = 4, .n_steps = 10};
    Update shard(options);
    shard.fill_gradients(0.5f);
    CHECK(shard.step(0, 1).lr == 0.25e-3);
    const std::vector<float> values = flat_values(values_of(shard.state()));
    const std::vector<float> m = flat_values(shard.state().flat_m());
    const std::vector<float> v = flat_values(shard.state().flat_v());
    shard.fill_gradients(0.5f);
    if (bad != 0) shard.state().flat_gradients(0).as<float>()[100] = bad;
    const StepReport skipped = shard.step(1, bad == 0 ? 0 : 1);
    CHECK(skipped.skipped);
    CHECK(skipped.n_updates == 1);
    CHECK(flat_values(values_of(shard.state())) == values);
    CHECK(flat_values(shard.state().flat_m()) == m);
    CHECK(flat_values(shard.state().flat_v()) == v);
    shard.fill_gradients(0.5f);
    const StepReport next = shard.step(2, 1);
    CHECK_FALSE(next.skipped);
    CHECK(next.n_updates == 2);
    CHECK(next.lr == 0.5e-3);
    CHECK(flat_values(values_of(shard.state())) != values);
  }
}

TEST_CASE("nothing is updated before every bucket is reduced and every rank's facts are here") {
  Options options{.optimizer = plain_optimizer(), .dp = 3, .n_steps = 2};
  Update shard(options);
  REQUIRE(shard.n_buckets() > 3);
  shard.fill_gradients(0.5f);
  shard.facts(0, 0, {1, 0});
  shard.facts(0, 2, {1, 0});
  shard.all_reduced(0);
  CHECK(shard.updated().keys.empty());
  CHECK(first_value(shard.state(), Role::up_weight) == 1);
  shard.facts(0, 1, {1, 0});
  CHECK(shard.updated().keys == std::vector<std::int64_t>{1});
  for (int rank = 0; rank < 3; ++rank) shard.facts(1, rank, {1, 0});
  const float before = first_value(shard.state(), Role::up_weight);
  for (std::int64_t b = 0; b < shard.n_buckets(); ++b) {
    CHECK(shard.updated().keys.size() == 1);
    CHECK(first_value(shard.state(), Role::up_weight) == before);
    shard.reduced(1, b);
  }
  CHECK(shard.updated().keys == std::vector<std::int64_t>{1, 2});
  CHECK(first_value(shard.state(), Role::up_weight) < before);
}

TEST_CASE("one rank's wish to stop ends the run after the step in which it is told") {
  Options options{.optimizer = plain_optimizer(), .dp = 2, .n_steps = 5};
  Update shard(options);
  shard.fill_gradients(0.5f);
  CHECK_FALSE(shard.step(0, 1).stop);
  CHECK_FALSE(shard.updated().messages.back().stop);
  shard.facts(1, 0, {1, 0});
  shard.facts(1, 1, {1, 1});
  shard.all_reduced(1);
  CHECK(shard.reports().messages.back().stop);
  CHECK(shard.reports().messages.back().n_updates == 2);
  CHECK(shard.updated().keys.back() == 2);
  CHECK(shard.updated().messages.back().stop);
}
