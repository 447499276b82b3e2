#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "src/checkpoint/store.h"
#include "tests/io/temporary_folder.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

namespace fs = std::filesystem;

struct SavedLayout {
  const char* name;
  int dp = 1;
  int pp = 1;
  int tp = 1;
  int zero_stage = 0;
  Dtype compute = Dtype::f32;
  int n_chunks = 1;
};

/// Tensors of several chunks, so that shards cut within them; heads that 2 and 4 ranks divide.
ModelConfig model_of(Dtype compute) {
  ModelConfig model = parity_gpt2(0.1f);
  model.n_layers = 4;
  model.hidden_size = 32;
  model.intermediate_size = 304;
  model.vocab_size = 263;
  model.compute = compute;
  return model;
}

/// Four samples a step in microbatches of one, whatever the layout.
Settings settings_of(const ModelConfig& model, const SavedLayout& layout, std::int64_t n_steps) {
  Settings settings = parity_settings(
      model, layout.dp, std::vector<std::int64_t>(static_cast<std::size_t>(4 / layout.dp), 1), 1,
      n_steps);
  settings.model.compute = layout.compute;
  settings.grid.tp = layout.tp;
  settings.zero_stage = layout.zero_stage;
  settings.unit_min_parameters = 1;
  settings.bucket_bytes = 20000;
  set_pipeline(settings, {.schedule = layout.n_chunks > 1 ? ScheduleKind::interleaved
                                                          : ScheduleKind::one_f_one_b,
                          .n_ranks = layout.pp,
                          .n_chunks = layout.n_chunks});
  return settings;
}

void save_every(Settings& settings, std::int64_t interval, bool sharded) {
  settings.saves = {.enabled = true,
                    .interval_steps = interval,
                    .n_steps = settings.n_steps,
                    .validation = settings.validation};
  settings.saves_sharded = sharded;
}

World::Options options_of(const Settings& settings, std::uint64_t seed = 1) {
  World::Options options;
  options.delivery_seed = seed;
  const std::int64_t vocab_size = settings.model.vocab_size;
  const std::int64_t seq_len = settings.seq_len;
  options.train = [vocab_size, seq_len](int) {
    return std::make_unique<RandomSamples>(11, vocab_size, seq_len, 20);
  };
  return options;
}

World::Options saving_to(const Settings& settings, const fs::path& folder) {
  World::Options options = options_of(settings);
  options.save_to.folder = folder;
  options.save_to.kept = {.n_last = 100};
  return options;
}

/// Checksums of weights and moments.
std::vector<FileRecord> files_of(const fs::path& folder, std::int64_t step) {
  return verify_checkpoint(folder / checkpoint_name(step)).files;
}

/// The losses from `step` on are those of the run that was not interrupted.
void check_end(const Outcome& resumed, const Outcome& whole, std::int64_t step) {
  const auto n = static_cast<std::size_t>(step);
  REQUIRE(resumed.losses.size() + n == whole.losses.size());
  for (std::size_t i = 0; i < resumed.losses.size(); ++i) {
    REQUIRE(resumed.losses[i] == whole.losses[i + n]);
    REQUIRE(resumed.reports[i].lr == whole.reports[i + n].lr);
    REQUIRE(resumed.reports[i].loss_scale == whole.reports[i + n].loss_scale);
    REQUIRE(resumed.reports[i].grad_norm == whole.reports[i + n].grad_norm);
    REQUIRE(resumed.reports[i].n_updates == whole.reports[i + n].n_updates);
  }
  REQUIRE(difference(resumed.weights, whole.weights) == "");
}

const std::vector<SavedLayout> saved_layouts = {
    {.name = "one rank"},
    {.name = "one rank, bf16", .compute = Dtype::bf16},
    {.name = "dp 2", .dp = 2},
    {.name = "dp 4, bf16", .dp = 4, .compute = Dtype::bf16},
    {.name = "dp 2, zero 1", .dp = 2, .zero_stage = 1},
    {.name = "dp 4, zero 2, bf16", .dp = 4, .zero_stage = 2, .compute = Dtype::bf16},
    {.name = "dp 4, zero 3", .dp = 4, .zero_stage = 3},
    {.name = "pp 2", .pp = 2},
    {.name = "pp 2, two chunks", .pp = 2, .n_chunks = 2},
    {.name = "pp 2, dp 2, zero 3, bf16", .dp = 2, .pp = 2, .zero_stage = 3, .compute = Dtype::bf16},
    {.name = "tp 4", .tp = 4},
    {.name = "tp 2, pp 2, dp 2, zero 1", .dp = 2, .pp = 2, .tp = 2, .zero_stage = 1},
};

Weights read_whole(const CheckpointReader& checkpoint, const ModelConfig& model, TensorPart part) {
  Weights tensors;
  for (const ParameterSpec& spec : parameters(model)) {
    std::vector<float>& values = tensors.emplace_back(static_cast<std::size_t>(spec.n_elements()));
    const Range all{0, spec.n_elements()};
    checkpoint.read(spec, part, all, MutView(values.data(), {all.size()}));
  }
  return tensors;
}

}  // namespace

TEST_CASE("a run that is interrupted after any step ends with the bits of one that is not") {
  for (const bool sharded : {false, true}) {
    for (const SavedLayout& layout : saved_layouts) {
      if (!full_counts() && sharded != (layout.zero_stage % 2 == 1)) continue;
      INFO(layout.name << (sharded ? ", sharded" : ", full"));
      const TemporaryFolder folder;
      Settings settings = settings_of(model_of(layout.compute), layout, 4);
      settings.validation = {.interval_steps = 2, .n_steps = 4, .n_samples = 5};
      if (layout.compute == Dtype::bf16) {
        // It moves within these steps, as under float16.
        settings.optimizer.loss_scale = LossScaleConfig{.initial = 1024, .growth_interval = 3};
      }
      World::Options never = options_of(settings);
      never.validation = never.train;
      const Outcome whole = World(settings, never).run();
      save_every(settings, 1, sharded);
      World::Options saving = saving_to(settings, folder / "a");
      saving.validation = saving.train;
      check_same(World(settings, saving).run(), whole);
      REQUIRE(list_checkpoints(folder / "a") == std::vector<std::int64_t>{1, 2, 3, 4});
      for (std::int64_t step = 1; step < 4; ++step) {
        World::Options resumed = saving_to(settings, folder / std::to_string(step));
        resumed.validation = resumed.train;
        resumed.resume = folder / "a" / checkpoint_name(step);
        check_end(World(settings, resumed).run(), whole, step);
        REQUIRE(files_of(folder / std::to_string(step), 4) == files_of(folder / "a", 4));
      }
    }
  }
}

TEST_CASE("a checkpoint of every layout is read under every layout, moments too, by name") {
  const TemporaryFolder folder;
  for (std::size_t a = 0; a < saved_layouts.size(); ++a) {
    Settings saved = settings_of(model_of(saved_layouts[a].compute), saved_layouts[a], 2);
    save_every(saved, 2, a % 2 == 1);
    World(saved, saving_to(saved, folder / std::to_string(a))).run();
    const fs::path path = folder / std::to_string(a) / checkpoint_name(2);
    verify_checkpoint(path);
    const CheckpointReader checkpoint(path);
    for (const SavedLayout& layout : saved_layouts) {
      INFO(saved_layouts[a].name << " read under " << layout.name);
      Settings settings = settings_of(model_of(layout.compute), layout, 2);
      World::Options options = options_of(settings);
      options.resume = path;
      World world(settings, options);
      for (const TensorPart part : tensor_parts) {
        REQUIRE(difference(world.whole_part(part),
                           read_whole(checkpoint, model_of(layout.compute), part)) == "");
      }
    }
  }
}

TEST_CASE("a run that goes on under another layout has the bits of one that never moved") {
  const ModelConfig model = model_of(Dtype::f32);
  const TemporaryFolder folder;
  Settings alone = settings_of(model, saved_layouts[0], 4);
  save_every(alone, 2, false);
  const Outcome whole = World(alone, saving_to(alone, folder / "alone")).run();
  for (const SavedLayout& first : saved_layouts) {
    if (first.compute != Dtype::f32 || first.tp > 1) continue;
    Settings settings = settings_of(model, first, 4);
    save_every(settings, 2, first.dp > 1);
    World(settings, saving_to(settings, folder / first.name)).run();
    for (const SavedLayout& second : saved_layouts) {
      if (second.compute != Dtype::f32 || second.tp > 1) continue;
      INFO(first.name << ", then " << second.name);
      Settings rest = settings_of(model, second, 4);
      World::Options options = options_of(rest, 9);
      options.resume = folder / first.name / checkpoint_name(2);
      check_end(World(rest, options).run(), whole, 2);
    }
  }
}

TEST_CASE("a run that goes on with tensor-parallel ranks is near one that never moved") {
  ModelConfig model = model_of(Dtype::f32);
  const TemporaryFolder folder;
  const auto near = [&](const SavedLayout& layout) {
    Settings settings = settings_of(model, layout, 4);
    settings.optimizer.lr.peak = 1e-3;
    return settings;
  };
  Settings alone = near(saved_layouts[0]);
  save_every(alone, 2, false);
  const Outcome whole = World(alone, saving_to(alone, folder / "a")).run();
  for (const SavedLayout& layout : saved_layouts) {
    if (layout.tp == 1) continue;
    INFO(layout.name);
    Settings settings = near(layout);
    World::Options options = options_of(settings);
    options.resume = folder / "a" / checkpoint_name(2);
    const Outcome outcome = World(settings, options).run();
    CHECK(relative_distance(outcome.weights, whole.weights) < 1e-5);
    CHECK(outcome.losses.back() == Approx(whole.losses.back()).epsilon(1e-5));
  }
}

TEST_CASE("experts' checkpoints are read wherever experts are") {
  ModelConfig model = parity_mixtral();
  model.n_layers = 4;
  const auto settings_of_experts = [&](const SavedLayout& layout, bool spreads) {
    Settings settings = settings_of(model, layout, 2);
    settings.spreads_experts = spreads;
    set_pipeline(settings, {.n_ranks = layout.pp});
    return settings;
  };
  struct Case {
    SavedLayout layout;
    bool spreads;
  };
  const std::vector<Case> cases = {
      {{.name = "one rank"}, false},
      {{.name = "tp 2", .tp = 2}, false},
      {{.name = "spread, dp 2", .dp = 2}, true},
      {{.name = "spread, dp 4, zero 2", .dp = 4, .zero_stage = 2}, true},
      {{.name = "spread, dp 2, zero 3", .dp = 2, .zero_stage = 3}, true},
      {{.name = "spread, dp 2, pp 2, tp 2, zero 1", .dp = 2, .pp = 2, .tp = 2, .zero_stage = 1},
       true}};
  const TemporaryFolder folder;
  for (std::size_t a = 0; a < cases.size(); ++a) {
    for (const bool sharded : {false, true}) {
      Settings saved = settings_of_experts(cases[a].layout, cases[a].spreads);
      save_every(saved, 2, sharded);
      const fs::path to = folder / (std::to_string(a) + (sharded ? "s" : "f"));
      World(saved, saving_to(saved, to)).run();
      const fs::path path = to / checkpoint_name(2);
      verify_checkpoint(path);
      const CheckpointReader checkpoint(path);
      for (const Case& other : cases) {
        INFO(cases[a].layout.name << " read under " << other.layout.name);
        Settings settings = settings_of_experts(other.layout, other.spreads);
        World::Options options = options_of(settings);
        options.resume = path;
        World world(settings, options);
        for (const TensorPart part : tensor_parts) {
          REQUIRE(difference(world.whole_part(part), read_whole(checkpoint, model, part)) == "");
        }
      }
    }
  }
}

TEST_CASE("spread experts go on from any layout's checkpoint, and any layout from theirs") {
  ModelConfig model = parity_mixtral(0.1f);
  model.hidden_size = 32;
  model.intermediate_size = 72;
  const TemporaryFolder folder;
  const auto of = [&](const SavedLayout& layout) {
    Settings settings = settings_of(model, layout, 4);
    settings.optimizer.lr.peak = 1e-3;
    settings.spreads_experts = layout.dp > 1;
    return settings;
  };
  const std::vector<SavedLayout> spread = {{"one", 1},
                                           {"dp 2", 2},
                                           {"dp 4, zero 1", 4, 1, 1, 1},
                                           {"dp 2, pp 2, zero 3", 2, 2, 1, 3},
                                           {"dp 2, tp 2, zero 3", 2, 1, 2, 3}};
  bool sharded = false;
  for (const SavedLayout& first : spread) {
    Settings settings = of(first);
    save_every(settings, 2, sharded);
    const Outcome whole = World(settings, saving_to(settings, folder / first.name)).run();
    for (const SavedLayout& second : spread) {
      INFO(first.name << (sharded ? ", sharded" : ", full") << ", then " << second.name);
      const Settings rest = of(second);
      World::Options options = options_of(rest, 9);
      options.resume = folder / first.name / checkpoint_name(2);
      const Outcome outcome = World(rest, options).run();
      CHECK(relative_distance(outcome.weights, whole.weights) < 1e-5);
      CHECK(outcome.losses.back() == Approx(whole.losses.back()).epsilon(1e-5));
      if (second.name == first.name) CHECK(difference(outcome.weights, whole.weights) == "");
    }
    sharded = !sharded;
  }
}

TEST_CASE("a stop saves, the newest and the best are kept, and no rank holds more than its part") {
  const TemporaryFolder folder;
  Settings settings = settings_of(model_of(Dtype::f32), saved_layouts[4], 12);
  settings.validation = {.interval_steps = 1, .n_steps = 12, .n_samples = 4};
  save_every(settings, 5, true);
  settings.saves.best = true;
  World::Options options = saving_to(settings, folder.path());
  options.validation = options.train;
  options.save_to.kept = {.n_last = 1, .best = true};
  std::vector<std::int64_t> saved;
  options.save_to.saved = Port<SavedCheckpoint>(
      [&saved](std::int64_t, SavedCheckpoint one) { saved.push_back(one.step); });
  int n_asked = 0;
  options.stop_requested = [&n_asked](int rank) { return rank == 0 && ++n_asked == 9; };
  const Outcome outcome = World(settings, options).run();
  REQUIRE(outcome.stopped[0]);
  const std::int64_t n_done = outcome.n_steps_done[0];
  CHECK(saved.back() == n_done);
  CHECK(std::count(saved.begin(), saved.end(), 5) == 1);
  std::int64_t best = 1;
  for (const ValidationMetrics& one : outcome.validations) {
    if (one.loss < outcome.validations[static_cast<std::size_t>(best - 1)].loss)
      best = one.step + 1;
  }
  std::vector<std::int64_t> kept = {best, n_done};
  CHECK(list_checkpoints(folder.path()) == kept);
  CHECK(best_validation_loss(folder.path()) ==
        outcome.validations[static_cast<std::size_t>(best - 1)].loss);
}

TEST_CASE("a folder that cannot be written ends the run with its name") {
  const TemporaryFolder folder;
  write_plainly(folder / "file", "x");
  for (const bool sharded : {false, true}) {
    Settings settings = settings_of(model_of(Dtype::f32), saved_layouts[4], 4);
    save_every(settings, 2, sharded);
    World world(settings, saving_to(settings, folder / "file" / "inside"));
    CHECK_THROWS_WITH(world.run(), Catch::Contains("cannot make") &&
                                       Catch::Contains("file/inside/step-00000002.tmp"));
  }
}
