#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Twelve heads of four, so that 2, 3, 4 and 6 ranks divide them; a vocabulary that none divides.
ModelConfig model_of(bool gpt2, float dropout) {
  ModelConfig model = gpt2 ? parity_gpt2(dropout) : parity_llama(dropout);
  model.hidden_size = 48;
  model.n_heads = 12;
  model.n_kv_heads = gpt2 ? 12 : 6;
  model.intermediate_size = 72;
  model.vocab_size = 37;
  model.n_layers = 3;
  return model;
}

Settings five_steps(const ModelConfig& model, int dp, int tp) {
  Settings settings = parity_settings(model, dp, {2, 1}, 1, 5);
  settings.grid.tp = tp;
  // AdamW makes a step of this size of a key bias's gradient, which is 0 but for rounding.
  settings.optimizer.lr.peak = 1e-3;
  set_pipeline(settings);
  return settings;
}

}  // namespace

TEST_CASE("P4: tensor-parallel ranks are within 1e-5 of one rank") {
  for (const bool gpt2 : {true, false}) {
    for (const float dropout : {0.0f, 0.1f}) {
      const ModelConfig model = model_of(gpt2, dropout);
      const Outcome expected = run_world(five_steps(model, 1, 1), 1, 20);
      for (const int tp : {2, 3, 4, 6}) {
        if (model.n_kv_heads % tp != 0 && tp % model.n_kv_heads != 0) continue;
        for (const bool sequence : {false, true}) {
          INFO((gpt2 ? "GPT-2" : "Llama")
               << ", dropout " << dropout << ", tp " << tp << (sequence ? ", rows cut" : ""));
          Settings settings = five_steps(model, 1, tp);
          settings.sequence_parallel = sequence;
          check_near(run_world(settings, 3, 20), expected);
        }
      }
    }
  }
}

TEST_CASE("P4: inside of data-parallel pipelines, with ZeRO, within 1e-5 of one rank") {
  for (const bool tied : {true, false}) {
    ModelConfig model = model_of(true, 0.1f);
    model.tie_embeddings = tied;
    model.n_layers = 4;
    const auto settings_of = [&](int dp, int pp, int tp, ScheduleKind kind, int zero_stage) {
      Settings settings = five_steps(model, dp, tp);
      settings.partition.microbatch_samples =
          dp == 1 ? std::vector<std::int64_t>{1, 1, 1, 1} : std::vector<std::int64_t>{1, 1};
      settings.zero_stage = zero_stage;
      settings.unit_min_parameters = 1;
      set_pipeline(settings, {.schedule = kind, .n_ranks = pp});
      return settings;
    };
    const Outcome one = run_world(settings_of(1, 1, 1, ScheduleKind::one_f_one_b, 0), 1, 20);
    const Outcome flat = run_world(settings_of(2, 1, 2, ScheduleKind::one_f_one_b, 0), 1, 20);
    check_near(flat, one);
    Settings with_rows = settings_of(2, 1, 2, ScheduleKind::one_f_one_b, 0);
    with_rows.sequence_parallel = true;
    const Outcome flat_rows = run_world(with_rows, 1, 20);
    struct Case {
      ScheduleKind kind;
      int zero_stage;
      bool sequence;
    };
    for (const Case c :
         {Case{ScheduleKind::one_f_one_b, 1, false}, Case{ScheduleKind::zero_bubble, 3, false},
          Case{ScheduleKind::one_f_one_b, 1, true}, Case{ScheduleKind::zero_bubble, 3, true}}) {
      INFO((tied ? "tied, " : "") << "zero " << c.zero_stage << (c.sequence ? ", rows cut" : ""));
      Settings settings = settings_of(2, 2, 2, c.kind, c.zero_stage);
      settings.sequence_parallel = c.sequence;
      const Outcome outcome = run_world(settings, 3, 20);
      check_near(outcome, one);
      // P2: pipeline, schedule and ZeRO change no bit
      check_same(outcome, c.sequence ? flat_rows : flat);
    }
  }
}

TEST_CASE("P1, P2: timing, recomputation and the schedule change no bit of tensor-parallel ranks") {
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    ModelConfig model = model_of(false, 0.1f);
    model.compute = compute;
    for (const bool sequence : {false, true}) {
      Settings settings = five_steps(model, 1, 3);
      settings.sequence_parallel = sequence;
      const Outcome expected = run_world(settings, 0, 20);
      for (std::uint64_t seed = 1; seed <= n_delivery_seeds(6, 6); ++seed) {
        settings.recompute_blocks = seed % 2 == 0;
        check_same(run_world(settings, seed, 20), expected);
      }
    }
  }
}

TEST_CASE("bf16 and fp16 tensor-parallel ranks stay near one rank") {
  for (const Dtype compute : {Dtype::bf16, Dtype::f16}) {
    ModelConfig model = model_of(false, 0);
    model.compute = compute;
    const Outcome expected = run_world(five_steps(model, 1, 1), 1, 20);
    for (const bool sequence : {false, true}) {
      Settings settings = five_steps(model, 1, 2);
      settings.sequence_parallel = sequence;
      const Outcome outcome = run_world(settings, 1, 20);
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        CHECK(outcome.losses[i] == Approx(expected.losses[i]).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("replicated tensors have the same bits on every rank of the group after 20 steps") {
  ModelConfig model = model_of(true, 0.1f);
  Settings settings = five_steps(model, 1, 4);
  settings.n_steps = settings.optimizer.lr.n_steps = 20;
  settings.optimizer.lr.peak = 1e-2;
  for (const bool sequence : {false, true}) {
    settings.sequence_parallel = sequence;
    // The world joins the ranks' parts and refuses two values of one element.
    CHECK(run_world(settings, 5, 20).reports.back().n_updates == 20);
  }
}

TEST_CASE("a zero head has loss ln V, whatever the cut and the padding of the vocabulary") {
  for (const std::int64_t vocab_size : {std::int64_t{37}, std::int64_t{50257}}) {
    for (const int tp : {1, 2, 4}) {
      ModelConfig model = model_of(false, 0);
      model.n_kv_heads = 2;
      model.vocab_size = vocab_size;
      model.n_layers = 1;
      Settings settings = five_steps(model, 1, tp);
      settings.n_steps = settings.optimizer.lr.n_steps = 1;
      World::Options options;
      options.train = [&](int) {
        return std::make_unique<RandomSamples>(3, vocab_size, settings.seq_len);
      };
      options.prepare = [](ModelState& state) {
        const std::size_t head = spec_with(state, Role::head_weight);
        const auto n = static_cast<std::size_t>(state.specs()[head].n_elements());
        set_weights(state, head, std::vector<float>(n, 0.0f));
      };
      INFO("V " << vocab_size << ", tp " << tp);
      const double loss = World(settings, std::move(options)).run().losses.front();
      CHECK(loss == Approx(std::log(static_cast<double>(vocab_size))).epsilon(1e-7));
    }
  }
}

TEST_CASE("validation and a stop on tensor-parallel ranks see one rank's losses") {
  const auto run = [](int tp) {
    Settings settings = five_steps(model_of(true, 0), 1, tp);
    settings.validation = {
        .interval_steps = 2, .n_steps = 5, .n_samples = 5, .microbatch_samples = 2};
    set_pipeline(settings);
    World::Options options;
    options.train = [settings](int) {
      return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len, 20);
    };
    options.validation = options.train;
    int n_asked = 0;
    options.stop_requested = [n_asked, tp](int rank) mutable {
      return rank == tp - 1 && ++n_asked == 4;
    };
    return World(settings, std::move(options)).run();
  };
  const Outcome expected = run(1);
  const Outcome outcome = run(4);
  REQUIRE(expected.stopped == std::vector<bool>(1, true));
  CHECK(outcome.stopped == std::vector<bool>(4, true));
  CHECK(outcome.losses.size() == expected.losses.size());
  REQUIRE(outcome.validations.size() == expected.validations.size());
  for (std::size_t i = 0; i < expected.validations.size(); ++i) {
    CHECK(outcome.validations[i].n_tokens == expected.validations[i].n_tokens);
    CHECK(outcome.validations[i].loss == Approx(expected.validations[i].loss).epsilon(1e-5));
  }
}
