// What --plan says of ranks on devices, against what they hold there.
#include <catch2/catch.hpp>

#include "src/comm/library_sums.h"
#include "src/train/plan_report.h"
#include "src/train/rank_plan.h"
#include "tensor/storage.h"
#include "tests/cuda/emulated_module.h"
#include "tests/parity/world.h"

extern "C" const llm::NcclCalls* llm_nccl_calls();

namespace llm {
namespace {

std::int64_t planned_bytes(const Settings& settings, bool is_on_host) {
  std::int64_t total = 0;
  for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
    for (const LedgerEntry& entry : memory_ledger(settings, rank)) {
      // The products' workspace is the libraries', not a Storage.
      const bool counts = entry.kind != LedgerKind::threads && entry.is_on_host == is_on_host;
      total += counts ? entry.n_bytes : 0;
    }
  }
  return total;
}

/// A few of each kind, small: the emulator is slow.
std::vector<Settings> many_settings() {
  std::vector<Settings> all;
  ModelConfig gpt2 = parity_gpt2(0.1f);
  gpt2.n_layers = 1;
  ModelConfig mixtral = parity_mixtral();
  mixtral.n_layers = 1;
  Settings settings = parity_settings(gpt2, 2, {1}, 1, 1);
  settings.unit_min_parameters = 1;
  for (const int zero_stage : {0, 1, 2, 3}) {
    settings.zero_stage = zero_stage;
    settings.model.compute = zero_stage == 2 ? Dtype::bf16 : Dtype::f32;
    all.push_back(settings);
  }
  settings.sums_by_nccl = true;
  for (const int zero_stage : {0, 1, 3}) {
    settings.zero_stage = zero_stage;
    all.push_back(settings);
  }
  settings.sums_by_nccl = false;
  settings.offloads_parameters = true;
  settings.model.compute = Dtype::bf16;
  settings.validation = {.interval_steps = 1, .n_steps = 1, .n_samples = 2};
  settings.validation.microbatch_samples = 1;
  all.push_back(settings);

  settings = parity_settings(mixtral, 2, {1}, 1, 1);
  settings.spreads_experts = true;
  all.push_back(settings);
  settings.zero_stage = 3;
  settings.unit_min_parameters = 1;
  all.push_back(settings);

  settings = parity_settings(gpt2, 1, {1, 1}, 1, 1);
  settings.grid.tp = 2;
  settings.sequence_parallel = true;
  set_pipeline(settings);
  all.push_back(settings);
  settings.model.n_layers = 2;
  settings.grid.tp = 1;
  set_pipeline(settings, {.schedule = ScheduleKind::zero_bubble, .n_ranks = 2});
  all.push_back(settings);
  settings.recompute_blocks = true;
  settings.zero_stage = 3;
  settings.offloads_parameters = true;
  all.push_back(settings);
  for (Settings& one : all) one.device = Device::cuda;
  return all;
}

World::Options random_run(const Settings& settings) {
  World::Options options;
  options.train = [&](int) {
    return std::make_unique<RandomSamples>(1, settings.model.vocab_size, settings.seq_len);
  };
  if (settings.validation.n_samples > 0) options.validation = options.train;
  if (settings.sums_by_nccl) options.nccl = llm_nccl_calls();
  return options;
}

TEST_CASE("the plan's bytes of ranks on devices are what they hold there, to the byte") {
  for (const Settings& settings : many_settings()) {
    INFO(plan_text(settings, 1));
    const test::EmulatedModule emulated(1);
    const std::int64_t before = storage_bytes_in_use(Device::cuda);
    {
      World world(settings, random_run(settings));
      world.run();
      CHECK(storage_bytes_in_use(Device::cuda) - before == planned_bytes(settings, false));
    }
    CHECK(storage_bytes_in_use(Device::cuda) == before);
  }
}

TEST_CASE("what ranks tell each other of NCCL's sums is in the plan, and what those promise") {
  Settings settings = parity_settings(parity_gpt2(), 3, {1}, 1, 2);
  settings.device = Device::cuda;
  CHECK(library_sums_line(settings).empty());
  CHECK(plan_text(settings, 1).find("receives of the gradient reducers") != std::string::npos);
  settings.sums_by_nccl = true;
  const std::string text = plan_text(settings, 1);
  CHECK(text.find("the same bits at every start of this layout, not across layouts") !=
        std::string::npos);
  CHECK(text.find("receives of the gradient reducers") == std::string::npos);
  for (const int zero_stage : {0, 1}) {
    settings.zero_stage = zero_stage;
    const test::EmulatedModule emulated(1);
    World world(settings, random_run(settings));
    world.run();
    for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
      const StepTraffic traffic = step_traffic(settings, rank);
      CHECK(world.counts(rank).messages_sent ==
            traffic.n_start_messages + settings.n_steps * traffic.n_tensor_messages);
      CHECK(world.counts(rank).bytes_sent ==
            traffic.n_start_messages * sums_id_bytes + settings.n_steps * traffic.n_bytes);
    }
  }
  settings.device = Device::cpu;
  CHECK(library_sums_line(settings).empty());
}

TEST_CASE("offloaded, a rank's device has no masters, no moments and only the units in use") {
  Settings settings = parity_settings(parity_gpt2(), 2, {1}, 1, 1);
  settings.device = Device::cuda;
  settings.zero_stage = 3;
  settings.unit_min_parameters = 1;
  settings.model.compute = Dtype::bf16;
  const std::int64_t device = planned_bytes(settings, false);
  const std::int64_t host = planned_bytes(settings, true);
  const FlatLayout layout = layout_of(settings, 0);
  settings.offloads_parameters = true;
  // Pieces of both ranks together are the layout: masters and two moments, and what is gathered.
  const std::int64_t state = layout.n_elements * 3 * 4;
  const std::int64_t moved = device - planned_bytes(settings, false);
  CHECK(moved > state);
  CHECK(moved < state + layout.n_elements * 4);
  // The summed gradients' copy comes on top.
  CHECK(planned_bytes(settings, true) - host == moved + layout.n_elements * 4);
  const std::string text = plan_text(settings, 1);
  for (const char* const part :
       {"masters (f32) of 1/2, on the host", "summed gradients of 1/2, on the host",
        "sum, on the device", "sum, on the host"}) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
  // Gradients stay where they are on a device.
  CHECK(text.find("until summed") == std::string::npos);
  settings.device = Device::cpu;
  CHECK_FALSE(settings.offloads());
  CHECK(plan_text(settings, 1).find("until summed") != std::string::npos);
  CHECK(plan_text(settings, 1).find("on the host") == std::string::npos);
}

}  // namespace
}  // namespace llm
