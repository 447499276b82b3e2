#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

struct LowModel {
  std::string name;
  ModelConfig model;
};

/// Both families and dtypes, tied and not, with dropout.
std::vector<LowModel> low_precision_models() {
  std::vector<LowModel> models;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (LowModel base : {LowModel{"gpt2", parity_gpt2(0.1f)}, LowModel{"llama", parity_llama()},
                          LowModel{"mixtral", parity_mixtral()}}) {
      base.model.compute = dtype;
      base.name += std::string(", ") + name_of(dtype);
      models.push_back(base);
    }
  }
  return models;
}

Settings low_settings(const ModelConfig& model, int dp, std::vector<std::int64_t> samples,
                      int n_accumulation_steps, std::int64_t n_steps) {
  Settings settings = parity_settings(model, dp, std::move(samples), n_accumulation_steps, n_steps);
  if (model.compute == Dtype::f16) {
    // Doubles after two good steps, so that the scale moves within the run.
    settings.optimizer.loss_scale = LossScaleConfig{.initial = 1024, .growth_interval = 2};
  }
  return settings;
}

/// A scale at which every gradient overflows f16: 2^24 / 2^3 tokens.
Settings overflowing(int dp, double minimum) {
  ModelConfig model = parity_gpt2();
  model.compute = Dtype::f16;
  Settings settings = parity_settings(model, dp, {1}, 4 / dp, 12);
  settings.optimizer.lr.warmup_steps = 6;
  settings.optimizer.loss_scale =
      LossScaleConfig{.initial = 0x1p24, .growth_interval = 1000, .minimum = minimum};
  return settings;
}

}  // namespace

TEST_CASE("low precision, P1: the order of messages changes no bit") {
  const std::uint64_t n_seeds = n_delivery_seeds(500, 60);
  for (const LowModel& low : low_precision_models()) {
    Settings settings = low_settings(low.model, 4, {1}, 2, 2);
    settings.bucket_bytes = 2048;
    settings.n_reducer_lanes = 3;
    const Outcome expected = run_world(settings, 0, 20);
    for (std::uint64_t seed = 1; seed <= n_seeds; ++seed) {
      INFO(low.name << ", delivery seed " << seed);
      check_same(run_world(settings, seed, 20), expected);
    }
    std::printf("P1: %s: %d delivery seeds\n", low.name.c_str(), static_cast<int>(n_seeds));
  }
}

TEST_CASE("low precision, P2: buckets, lanes and accumulation steps change no bit") {
  for (const LowModel& low : low_precision_models()) {
    INFO(low.name);
    Settings settings = low_settings(low.model, 2, {1}, 6, 3);
    const Outcome expected = run_world(settings);
    for (const std::int64_t bucket_bytes : {std::int64_t{4}, std::int64_t{1} << 40}) {
      settings.bucket_bytes = bucket_bytes;
      check_same(run_world(settings), expected);
    }
    settings.n_reducer_lanes = 3;
    check_same(run_world(settings), expected);
    settings.partition.microbatch_samples = {1, 1, 1};
    settings.partition.n_accumulation_steps = 2;
    set_pipeline(settings);
    check_same(run_world(settings), expected);
  }
}

TEST_CASE("low precision, P3: dp of 1, 2 and 4 have the same bits") {
  for (const LowModel& low : low_precision_models()) {
    const Outcome expected = run_world(low_settings(low.model, 1, {2, 1, 1}, 4, 5), 1, 30);
    REQUIRE(expected.reports.back().n_updates == 5);
    for (const int dp : {2, 4}) {
      INFO(low.name << ", dp " << dp);
      check_same(run_world(low_settings(low.model, dp, {2, 1, 1}, 4 / dp, 5), 1, 30), expected);
    }
  }
}

TEST_CASE("low precision stays near float32") {
  for (const LowModel& low : low_precision_models()) {
    INFO(low.name);
    ModelConfig exact = low.model;
    exact.compute = Dtype::f32;
    const Outcome reference = run_world(low_settings(exact, 1, {2}, 2, 5));
    const Outcome outcome = run_world(low_settings(low.model, 1, {2}, 2, 5));
    for (std::size_t step = 0; step < 5; ++step) {
      CHECK(outcome.losses[step] == Approx(reference.losses[step]).epsilon(0.01));
    }
  }
}

TEST_CASE("float16: an overflow is skipped by every rank, and the scale halves until it fits") {
  const Outcome one = run_world(overflowing(1, 1));
  const Outcome two = run_world(overflowing(2, 1));
  check_same(two, one);
  std::size_t n_skipped = 0;
  while (n_skipped < one.reports.size() && one.reports[n_skipped].skipped) ++n_skipped;
  REQUIRE(n_skipped > 0);
  REQUIRE(n_skipped < one.reports.size());
  for (std::size_t i = 0; i < one.reports.size(); ++i) {
    const StepReport& report = one.reports[i];
    const std::size_t n_before = std::min(i, n_skipped);
    CHECK(report.loss_scale == std::ldexp(0x1p24, -static_cast<int>(n_before)));
    CHECK(report.skipped == (i < n_skipped));
    // Neither AdamW's step count nor the warm-up's place moves on a skipped step.
    const auto n_updates = static_cast<std::int64_t>(i < n_skipped ? 0 : i + 1 - n_skipped);
    CHECK(report.n_updates == n_updates);
    const std::int64_t t = report.skipped ? 0 : n_updates - 1;
    CHECK(report.lr == learning_rate(overflowing(1, 1).optimizer.lr, t));
  }
}

TEST_CASE("float16: an overflow at the least scale ends the run with the way out") {
  try {
    run_world(overflowing(2, 0x1p24));
    FAIL("the run goes on");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::internal);
    CHECK_THAT(error.what(), Catch::Contains("step 1: gradients overflow float16"));
    CHECK_THAT(error.what(), Catch::Contains("optimization.loss_scale_min"));
    CHECK_THAT(error.what(), Catch::Contains("amp_dtype: bfloat16"));
  }
}
