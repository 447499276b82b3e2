#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "tests/golden/golden.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// The golden trainer's samples by position.
class GoldenSamples : public SampleSource {
 public:
  explicit GoldenSamples(const GoldenCase& golden) : golden_(golden) {}
  std::int64_t seq_len() const override { return golden_.training.seq_len; }
  std::int64_t n_samples() const override { return samples_per_step() * golden_.training.n_steps; }
  void fetch(std::int64_t position, SampleOut out) override {
    const std::int64_t step = position / samples_per_step();
    const std::int64_t m = position % samples_per_step() / golden_.training.batch;
    const std::int64_t row = position % golden_.training.batch * seq_len();
    const auto tokens = golden_.tokens(step, m);
    const auto labels = golden_.labels(step, m);
    std::copy_n(tokens.begin() + row, seq_len(), out.tokens);
    std::copy_n(labels.begin() + row, seq_len(), out.labels);
  }
  std::string state() const override { return "{}"; }
  void restore(const std::string&) override {}

 private:
  std::int64_t samples_per_step() const {
    return golden_.training.batch * golden_.training.n_microbatches;
  }
  const GoldenCase& golden_;
};

Settings settings_of(const GoldenCase& golden, int dp, std::int64_t n_steps) {
  const GoldenTraining& t = golden.training;
  Settings settings;
  settings.model = golden.model;
  settings.seq_len = t.seq_len;
  settings.grid.dp = dp;
  settings.partition = {.microbatch_samples = {t.batch},
                        .n_accumulation_steps = static_cast<int>(t.n_microbatches) / dp,
                        .dp = dp};
  settings.optimizer = {.lr = {.shape = LrShape::cosine,
                               .peak = double{t.lr},
                               .min_ratio = double{t.min_lr} / double{t.lr},
                               .warmup_steps = t.warmup_steps,
                               .n_steps = t.n_steps},
                        .beta1 = double{t.beta1},
                        .beta2 = double{t.beta2},
                        .epsilon = double{t.epsilon},
                        .weight_decay = double{t.weight_decay},
                        .decay_embeddings = false,
                        .clip_norm = double{t.clip_norm}};
  settings.bucket_bytes = 4096;
  settings.seed = t.seed;
  settings.n_steps = n_steps;
  set_pipeline(settings);
  return settings;
}

Outcome run_golden(const GoldenCase& golden, const Settings& settings) {
  World::Options options;
  options.train = [&](int) { return std::make_unique<GoldenSamples>(golden); };
  if (!golden.training.starts_by_rule) {
    options.prepare = [&](ModelState& state) {
      for (std::size_t i = 0; i < state.specs().size(); ++i) {
        set_weights(state, i, golden.weights(state.specs()[i]));
      }
    };
  }
  return World(settings, options).run();
}

void check_run(const GoldenCase& golden, const Outcome& outcome) {
  REQUIRE(outcome.losses.size() == golden.losses.size());
  for (std::size_t step = 0; step < golden.losses.size(); ++step) {
    INFO("step " << step);
    CHECK(outcome.losses[step] == Approx(golden.losses[step]).epsilon(1e-6));
    CHECK(outcome.reports[step].grad_norm == Approx(golden.grad_norms[step]).epsilon(1e-5));
    CHECK(outcome.reports[step].lr == Approx(golden.learning_rates[step]).epsilon(1e-6));
  }
  std::vector<std::vector<float>> expected;
  for (const ParameterSpec& spec : parameters(golden.model)) {
    expected.push_back(golden.final_weights(spec));
  }
  const Distance d = distance(outcome.weights, expected);
  CHECK(d.together <= 1e-5);
  CHECK(d.of_one <= 1e-5);
}

}  // namespace

TEST_CASE("P5: whole trainers agree with the independent float64 trainer, over 1, 2 and 4 ranks") {
  for (const std::string& name : GoldenCase::names()) {
    const GoldenCase golden(name);
    REQUIRE(golden.training.n_microbatches == 4);
    for (const int dp : {1, 2, 4}) {
      for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
        INFO(name << ", dp " << dp);
        Settings settings = settings_of(golden, dp, golden.training.n_steps);
        settings.accumulation = kind;
        check_run(golden, run_golden(golden, settings));
      }
    }
  }
}

TEST_CASE(
    "P5: the first step's gradient agrees with the float64 trainer's, over 1, 2 and 4 ranks") {
  for (const std::string& name : GoldenCase::names()) {
    const GoldenCase golden(name);
    for (const int dp : {1, 2, 4}) {
      INFO(name << ", dp " << dp);
      const Settings settings = settings_of(golden, dp, 1);
      const Outcome outcome = run_golden(golden, settings);
      Weights mean = outcome.gradients;
      std::vector<std::vector<float>> expected;
      const int exponent = loss_scale_exponent(settings.partition, settings.seq_len);
      for (std::size_t i = 0; i < mean.size(); ++i) {
        for (float& g : mean[i]) {
          g = std::ldexp(g, exponent) / static_cast<float>(outcome.reports[0].n_valid);
        }
        expected.push_back(golden.first_gradient(parameters(golden.model)[i]));
      }
      const Distance d = distance(mean, expected);
      CHECK(d.together <= 1e-5);
      CHECK(d.of_one <= 1e-5);
    }
  }
}
