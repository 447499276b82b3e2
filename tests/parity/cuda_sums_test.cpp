// Whole training runs on an emulated device whose gradients NCCL's own collectives add up: near the
// plans' numbers, and the same bits whatever the timing, but not the plans' bits.
#include <catch2/catch.hpp>
#include <optional>

#include "src/checkpoint/store.h"
#include "tests/cuda/emulated_module.h"
#include "tests/io/temporary_folder.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"
#include "tests/support/cuda/emulated_nccl.h"

extern "C" const llm::NcclCalls* llm_nccl_calls();

namespace llm {
namespace {

constexpr int guards_each = 256;  // each costs a walk over all of the device's pages

enum class SumsBy : bool { plan, nccl };

World::Options options_of(const Settings& settings, std::uint64_t seed) {
  World::Options options;
  options.delivery_seed = seed;
  options.nccl = llm_nccl_calls();
  options.train = [model = settings.model, n = settings.seq_len](int) {
    return std::make_unique<RandomSamples>(11, model.vocab_size, n, 20);
  };
  return options;
}

/// Of a run; by library every bucket that ranks share is one sum a step, or one for each piece.
Outcome run_with(Settings settings, SumsBy by, std::uint64_t seed) {
  settings.device = Device::cuda;
  settings.sums_by_nccl = by == SumsBy::nccl;
  const test::EmulatedModule emulated(seed, guards_each);
  emulator::seed_nccl(seed);
  const std::int64_t n_before = emulator::n_sums();
  const Outcome outcome = World(settings, options_of(settings, seed)).run();
  CHECK((emulator::n_sums() > n_before) == (by == SumsBy::nccl));
  return outcome;
}

Settings small_settings(int dp, int zero_stage) {
  ModelConfig model = parity_gpt2(0.1f);
  model.n_layers = 1;
  Settings settings = parity_settings(model, dp, {1}, 1, 2);
  settings.zero_stage = zero_stage;
  if (zero_stage == 3) settings.unit_min_parameters = 1;
  return settings;
}

TEST_CASE("NCCL's collectives: two ranks have the plans' sums in every ZeRO stage and timing") {
  std::optional<Outcome> by_plan;
  for (const int zero_stage : {0, 1, 2, 3}) {
    INFO("zero_stage " << zero_stage);
    const Settings settings = small_settings(2, zero_stage);
    if (!by_plan) by_plan = run_with(settings, SumsBy::plan, 1);
    const Outcome by_nccl = run_with(settings, SumsBy::nccl, 2);
    check_near(by_nccl, *by_plan);
    check_same(run_with(settings, SumsBy::nccl, 3), by_nccl);
  }
}

TEST_CASE("NCCL's collectives: four ranks are near the plans, with bits of their own") {
  const Outcome by_plan = run_with(small_settings(4, 0), SumsBy::plan, 1);
  for (const int zero_stage : {0, 2}) {
    INFO("zero_stage " << zero_stage);
    const Settings settings = small_settings(4, zero_stage);
    const Outcome by_nccl = run_with(settings, SumsBy::nccl, 2);
    check_near(by_nccl, by_plan);
    CHECK(difference(by_nccl.gradients, by_plan.gradients) != "");
    check_same(run_with(settings, SumsBy::nccl, 3), by_nccl);
  }
}

TEST_CASE("NCCL's collectives: data-parallel pipelines have a group for each stage") {
  ModelConfig model = parity_gpt2(0.1f);
  Settings settings = parity_settings(model, 2, {1, 1}, 1, 2);
  settings.zero_stage = 1;
  settings.grid.pp = 2;
  set_pipeline(settings, {.schedule = ScheduleKind::zero_bubble, .n_ranks = 2});
  const Outcome by_nccl = run_with(settings, SumsBy::nccl, 2);
  check_near(by_nccl, run_with(settings, SumsBy::plan, 1));
  check_same(run_with(settings, SumsBy::nccl, 3), by_nccl);
}

TEST_CASE("NCCL's collectives: gradients of a rank's own experts are left alone") {
  ModelConfig model = parity_mixtral();
  model.n_layers = 1;
  Settings settings = parity_settings(model, 2, {1}, 1, 2);
  settings.spreads_experts = true;
  const Outcome by_nccl = run_with(settings, SumsBy::nccl, 2);
  check_near(by_nccl, run_with(settings, SumsBy::plan, 1));
}

TEST_CASE("NCCL's collectives: a run that goes on from a checkpoint has the same bits") {
  const TemporaryFolder folder;
  Settings settings = small_settings(3, 2);
  settings.device = Device::cuda;
  settings.sums_by_nccl = true;
  settings.saves = {.enabled = true, .interval_steps = 1, .n_steps = settings.n_steps};
  const test::EmulatedModule emulated(1, guards_each);
  World::Options options = options_of(settings, 1);
  options.save_to.folder = folder / "whole";
  options.save_to.kept = {.n_last = 100};
  const Outcome whole = World(settings, std::move(options)).run();
  Settings rest = settings;
  rest.first_step = 1;
  options = options_of(rest, 2);
  options.save_to.folder = folder / "rest";
  options.resume = folder / "whole" / checkpoint_name(1);
  const Outcome resumed = World(rest, std::move(options)).run();
  CHECK(difference(resumed.weights, whole.weights) == "");
  CHECK(resumed.losses.back() == whole.losses.back());
}

TEST_CASE("NCCL's collectives: an error that NCCL reports later ends the run with its cause") {
  Settings settings = small_settings(2, 0);
  settings.device = Device::cuda;
  settings.sums_by_nccl = true;
  {
    const test::EmulatedModule emulated(1, guards_each);
    World::Options options = options_of(settings, 1);
    options.after_step = [](std::int64_t) { emulator::fail_nccl(ncclRemoteError); };
    World world(settings, std::move(options));
    CHECK_THROWS_WITH(world.run(),
                      "NCCL: remote process exited or there was a network error (sums over ranks "
                      "0, 1)");
    emulator::fail_nccl(ncclSuccess);
  }
  CHECK(emulator::n_communicators() == 0);
}

}  // namespace
}  // namespace llm
