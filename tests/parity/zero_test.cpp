#include <catch2/catch.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Tensors of several chunks and of one element a row, so that shards cut within and between them.
ModelConfig model_of(bool tied, Dtype compute) {
  ModelConfig model = parity_gpt2(0.1f);
  model.n_layers = 4;
  model.hidden_size = 32;
  model.intermediate_size = 300;
  model.vocab_size = 263;
  model.tie_embeddings = tied;
  model.compute = compute;
  return model;
}

/// Twelve steps that clip.
Settings twelve_steps(const ModelConfig& model, int dp, int zero_stage) {
  Settings settings = parity_settings(model, dp, {1}, 2, 12);
  settings.zero_stage = zero_stage;
  return settings;
}

/// A run that is validated, and stopped by rank 1 when it has been asked so often.
Outcome run_validated(const Settings& settings, int n_asked_at_stop) {
  World::Options options;
  options.train = [&settings](int) {
    return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len, 20);
  };
  options.validation = options.train;
  int n_asked = 0;
  options.stop_requested = [n_asked, n_asked_at_stop](int rank) mutable {
    return rank == 1 && ++n_asked == n_asked_at_stop;
  };
  return World(settings, std::move(options)).run();
}

}  // namespace

TEST_CASE("P2: every ZeRO stage has DDP's bits, whatever the buckets") {
  GridCells cells("ZeRO", 5);
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    for (const bool tied : {true, false}) {
      for (const int dp : {2, 3, 4}) {
        const ModelConfig model = model_of(tied, compute);
        const Outcome expected = run_world(twelve_steps(model, dp, 0), 1, 20);
        REQUIRE(expected.reports.back().n_updates == 12);
        for (const int zero_stage : {1, 2, 3}) {
          for (const std::int64_t bucket_bytes : {4, 20000, 1 << 30}) {
            // The second stage's sums go where the first one's do.
            if (zero_stage == 2 && bucket_bytes != 20000 && !full_counts()) continue;
            if (!cells.takes_next()) continue;
            INFO(name_of(compute) << (tied ? ", tied" : "") << ", dp " << dp << ", zero "
                                  << zero_stage << ", buckets of " << bucket_bytes);
            Settings settings = twelve_steps(model, dp, zero_stage);
            settings.bucket_bytes = bucket_bytes;
            check_same(run_world(settings, 5, 20), expected);
          }
        }
      }
    }
  }
}

TEST_CASE("P2: units of any size, gathered ahead or not, kept or not, have DDP's bits") {
  GridCells cells("units", 5);
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    for (const bool tied : {true, false}) {
      const ModelConfig model = model_of(tied, compute);
      for (const int dp : {2, 3, 4}) {
        Settings settings = twelve_steps(model, dp, 0);
        settings.n_steps = settings.optimizer.lr.n_steps = 6;
        const Outcome expected = run_world(settings, 1, 20);
        settings.zero_stage = 3;
        // One unit; blocks and what is left; each layer its own.
        for (const std::int64_t min_parameters : {0, 15000, 1}) {
          for (const int n_ahead : {0, 1, 3}) {
            for (const bool reshard : {true, false}) {
              if (dp != 3 && (n_ahead != 1 || !reshard) && !full_counts()) continue;
              if (!cells.takes_next()) continue;
              INFO(name_of(compute)
                   << (tied ? ", tied" : "") << ", dp " << dp << ", units of " << min_parameters
                   << ", " << n_ahead << " ahead" << (reshard ? "" : ", kept"));
              settings.unit_min_parameters = min_parameters;
              settings.gather_policy = {n_ahead, reshard};
              check_same(run_world(settings, 7, 20), expected);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("P2: every ZeRO stage has DDP's bits of a mixture of experts, in a pipeline too") {
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    ModelConfig model = parity_mixtral(0.1f);
    model.n_layers = 4;
    model.intermediate_size = 200;
    model.compute = compute;
    for (const int pp : {1, 2}) {
      Settings settings = twelve_steps(model, 2, 0);
      settings.partition.microbatch_samples = {1, 1};
      set_pipeline(settings, {.schedule = ScheduleKind::zero_bubble, .n_ranks = pp});
      const Outcome expected = run_world(settings, 1, 20);
      for (const int zero_stage : {1, 2, 3}) {
        INFO(name_of(compute) << ", zero " << zero_stage << ", pp " << pp);
        settings.zero_stage = zero_stage;
        settings.unit_min_parameters = 1;
        check_same(run_world(settings, 5, 20), expected);
      }
    }
  }
}

TEST_CASE("P1: the order of messages changes no bit under ZeRO") {
  for (const int dp : {2, 4}) {
    Settings settings = twelve_steps(model_of(true, Dtype::f32), dp, dp == 2 ? 3 : 1);
    settings.unit_min_parameters = 1;
    settings.n_steps = settings.optimizer.lr.n_steps = 3;
    settings.n_reducer_lanes = 3;
    const Outcome expected = run_world(settings, 0, 20);
    const std::uint64_t n_seeds = n_delivery_seeds(200, 30);
    for (std::uint64_t seed = 1; seed <= n_seeds; ++seed) {
      check_same(run_world(settings, seed, 20), expected);
    }
  }
}

TEST_CASE("P2: ZeRO inside of a data-parallel pipeline has its bits") {
  GridCells cells("ZeRO in pipelines", 5);
  for (const bool tied : {true, false}) {
    for (const ScheduleKind kind :
         {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v}) {
      Settings settings = twelve_steps(model_of(tied, Dtype::bf16), 2, 0);
      settings.partition.microbatch_samples = {1, 1, 1};
      set_pipeline(settings, {.schedule = kind,
                              .n_ranks = 2,
                              .n_chunks = kind == ScheduleKind::zero_bubble_v ? 2 : 1});
      const Outcome expected = run_world(settings, 1, 20);
      for (const int zero_stage : {1, 2, 3}) {
        for (const std::int64_t min_parameters : {0, 1}) {
          if (!cells.takes_next()) continue;
          INFO("zero " << zero_stage << (tied ? ", tied" : "") << ", units of " << min_parameters);
          settings.zero_stage = zero_stage;
          settings.unit_min_parameters = min_parameters;
          check_same(run_world(settings, 3, 20), expected);
        }
      }
    }
  }
}

TEST_CASE("more ranks than a tensor has chunks, and than there are tensors, have DDP's bits") {
  ModelConfig model = parity_gpt2();
  model.n_layers = 1;
  for (const int dp : {5, 16, 33}) {
    Settings settings = parity_settings(model, dp, {1}, 1, 3);
    const Outcome expected = run_world(settings);
    settings.bucket_bytes = 1 << 20;
    for (const int zero_stage : {1, 3}) {
      settings.zero_stage = zero_stage;
      settings.unit_min_parameters = 1;
      check_same(run_world(settings), expected);
    }
  }
}

TEST_CASE("f16: an overflow makes every rank skip under ZeRO, once") {
  ModelConfig model = model_of(true, Dtype::f16);
  Settings settings = twelve_steps(model, 4, 0);
  settings.optimizer.loss_scale = LossScaleConfig{.initial = 0x1p24, .growth_interval = 1000};
  const Outcome expected = run_world(settings, 1, 20);
  REQUIRE(expected.reports.front().skipped);
  for (const int zero_stage : {1, 2, 3}) {
    settings.zero_stage = zero_stage;
    check_same(run_world(settings, 1, 20), expected);
  }
}

TEST_CASE("f16: an overflow at step 3 halves the scale once, under every ZeRO stage") {
  const ModelConfig model = model_of(true, Dtype::f16);
  Settings settings = twelve_steps(model, 4, 0);
  settings.optimizer.lr.peak = 1e-6;  // gradients stay about as large as they are
  settings.optimizer.loss_scale = LossScaleConfig{.initial = 0x1p24, .growth_interval = 1000};
  const Outcome search = run_world(settings, 1, 20);
  REQUIRE(search.reports.front().skipped);
  // The largest scale that fits doubles after two steps, and the third overflows.
  const double fits = search.reports.back().loss_scale;
  settings.optimizer.loss_scale = LossScaleConfig{.initial = fits, .growth_interval = 2};
  settings.n_steps = settings.optimizer.lr.n_steps = 4;
  const Outcome expected = run_world(settings, 1, 20);
  std::vector<bool> skipped;
  for (const StepReport& report : expected.reports) skipped.push_back(report.skipped);
  REQUIRE(skipped == std::vector<bool>{false, false, true, false});
  REQUIRE(expected.reports[2].loss_scale == 2 * fits);
  REQUIRE(expected.reports[3].loss_scale == fits);
  REQUIRE(expected.reports[3].n_updates == 3);
  for (const int zero_stage : {1, 2, 3}) {
    settings.zero_stage = zero_stage;
    settings.unit_min_parameters = 1;
    check_same(run_world(settings, 1, 20), expected);
  }
}

TEST_CASE("one rank under ZeRO gives the plain run's bits") {
  Settings settings = twelve_steps(model_of(true, Dtype::bf16), 1, 0);
  const Outcome expected = run_world(settings, 1, 20);
  for (const int zero_stage : {1, 3}) {
    settings.zero_stage = zero_stage;
    check_same(run_world(settings, 1, 20), expected);
  }
}

TEST_CASE("validation and a stop under ZeRO see the weights of their step") {
  Settings settings = twelve_steps(model_of(true, Dtype::bf16), 3, 0);
  settings.validation = {
      .interval_steps = 5, .n_steps = settings.n_steps, .n_samples = 11, .microbatch_samples = 1};
  const auto run = [](const Settings& s) { return run_validated(s, 11); };
  const Outcome expected = run(settings);
  REQUIRE(expected.validations.size() == 2);
  REQUIRE(expected.stopped.front());
  for (const int zero_stage : {1, 3}) {
    for (const int n_ahead : {0, 2}) {
      settings.zero_stage = zero_stage;
      settings.unit_min_parameters = 1;
      settings.gather_policy.n_ahead = n_ahead;
      check_same(run(settings), expected);
    }
  }
}

TEST_CASE("units are gathered for validation in pipelines too, also by ranks with less of it") {
  GridCells cells("units with validation in pipelines", 5);
  for (const bool tied : {true, false}) {
    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_v}) {
      Settings settings = twelve_steps(model_of(tied, Dtype::bf16), 3, 0);
      settings.n_steps = settings.optimizer.lr.n_steps = 4;
      settings.partition.microbatch_samples = {1, 1, 1};
      settings.validation = {
          .interval_steps = 2, .n_steps = 4, .n_samples = 4, .microbatch_samples = 1};
      set_pipeline(settings, {.schedule = kind,
                              .n_ranks = 2,
                              .n_chunks = kind == ScheduleKind::zero_bubble_v ? 2 : 1});
      const Outcome expected = run_validated(settings, -1);
      REQUIRE(expected.validations.size() == 2);
      settings.zero_stage = 3;
      for (const std::int64_t min_parameters : {0, 1}) {
        for (const int n_ahead : {0, 1, 4}) {
          if (!cells.takes_next()) continue;
          INFO((tied ? "tied, " : "")
               << "units of " << min_parameters << ", " << n_ahead << " ahead");
          settings.unit_min_parameters = min_parameters;
          settings.gather_policy.n_ahead = n_ahead;
          check_same(run_validated(settings, -1), expected);
        }
      }
    }
  }
}
