// Whole training runs on an emulated device: within rounding of the CPU's, and the same bits
// whatever the device's timing and the layout.
#include <catch2/catch.hpp>
#include <vector>

#include "src/checkpoint/store.h"
#include "src/comm/nccl/nccl_transport.h"
#include "src/model/cached_decoder.h"
#include "src/model/init.h"
#include "src/train/whole_model.h"
#include "tests/cuda/emulated_module.h"
#include "tests/io/temporary_folder.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

extern "C" const llm::NcclCalls* llm_nccl_calls();

namespace llm {
namespace {

constexpr int guards_each = 256;  // each costs a walk over all of the device's pages

enum class Wire : bool { host, nccl };

Outcome run_on_device(Settings settings, std::uint64_t seed, Wire wire = Wire::host) {
  settings.device = Device::cuda;
  const test::EmulatedModule emulated(seed, guards_each);
  World::Options options;
  options.delivery_seed = seed;
  options.nccl = wire == Wire::nccl ? llm_nccl_calls() : nullptr;
  options.train = [&settings](int) {
    return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len, 20);
  };
  return World(settings, std::move(options)).run();
}

TEST_CASE("on a device: a rank's training agrees with the CPU's") {
  ModelConfig sinusoidal = parity_gpt2(0.1f);
  sinusoidal.positions = Positions::sinusoidal;
  for (const ModelConfig& model :
       {parity_gpt2(0.1f), parity_llama(0.1f), parity_mixtral(0.1f), sinusoidal}) {
    const Settings settings = parity_settings(model, 1, {2, 1}, 1, 2);
    const Outcome on_cpu = run_world(settings, 1, 20);
    const Outcome on_device = run_on_device(settings, 1);
    check_near(on_device, on_cpu);
    check_same(run_on_device(settings, 2), on_device);
  }
}

TEST_CASE("on a device: plain kernels and the library's products agree") {
  Settings settings = parity_settings(parity_llama(), 1, {2}, 1, 2);
  settings.device = Device::cuda;
  const Outcome by_library = run_on_device(settings, 3);
  const test::EmulatedModule emulated(3);
  cuda::module().runtime.use_library(false);
  check_near(run_world(settings, 3, 20), by_library);
  cuda::module().runtime.use_library(true);
}

TEST_CASE("on a device: low precisions agree with the CPU's to their rounding") {
  for (const Dtype compute : {Dtype::bf16, Dtype::f16}) {
    ModelConfig model = parity_mixtral();
    model.compute = compute;
    Settings settings = parity_settings(model, 1, {2, 1}, 1, 3);
    if (compute == Dtype::f16) settings.optimizer.loss_scale = LossScaleConfig{};
    const Outcome on_cpu = run_world(settings, 1, 20);
    const Outcome on_device = run_on_device(settings, 1);
    const double tolerance = compute == Dtype::bf16 ? 2e-2 : 3e-3;
    CHECK(relative_distance(on_device.weights, on_cpu.weights) < tolerance);
    CHECK(relative_distance(on_device.gradients, on_cpu.gradients) < 5 * tolerance);
    for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
      CHECK(on_device.losses[i] == Approx(on_cpu.losses[i]).epsilon(tolerance));
    }
    check_same(run_on_device(settings, 2), on_device);
  }
}

TEST_CASE("on a device: recomputation and the sequence of sums change no bit") {
  Settings settings = parity_settings(parity_gpt2(0.1f), 1, {1}, 3, 2);
  const Outcome expected = run_on_device(settings, 1);
  settings.recompute_blocks = true;
  check_same(run_on_device(settings, 2), expected);
}

/// Of a run of five steps with graphs, whose bits are those without. Buffers of pipelines
/// alternate, so that what comes for the first time comes for some steps.
void check_graphs(Settings settings, Wire wire) {
  settings.n_steps = 5;
  const Outcome expected = run_on_device(settings, 1, wire);
  REQUIRE(expected.graphs[0] == Queue::GraphCounts{});
  settings.least_graph_ops = 3;
  const Outcome with_graphs = run_on_device(settings, 2, wire);
  check_same(with_graphs, expected);
  for (const Queue::GraphCounts& counts : with_graphs.graphs) {
    CHECK(4 * counts.n_ops_launched > counts.n_ops_new);
  }
}

TEST_CASE("on devices: graphs of ops that come again change no bit") {
  SECTION("a rank, recomputing") {
    for (const bool recompute : {false, true}) {
      Settings settings = parity_settings(parity_gpt2(0.1f), 1, {1}, 3, 2);
      settings.recompute_blocks = recompute;
      check_graphs(settings, Wire::host);
    }
  }
  SECTION("a mixture, sharing out its experts") {
    Settings settings = parity_settings(parity_mixtral(0.1f), 2, {1}, 1, 2);
    settings.spreads_experts = true;
    check_graphs(settings, Wire::nccl);
  }
  SECTION("ZeRO") {
    for (const int zero_stage : {1, 3}) {
      Settings settings = parity_settings(parity_gpt2(0.1f), 2, {1}, 2, 2);
      settings.zero_stage = zero_stage;
      if (zero_stage == 3) settings.unit_min_parameters = 1;
      check_graphs(settings, Wire::nccl);
    }
  }
  SECTION("pipelines") {
    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
      Settings settings = parity_settings(parity_gpt2(0.1f), 1, {1, 1}, 2, 2);
      settings.grid.pp = 2;
      set_pipeline(settings, {.schedule = kind, .n_ranks = 2});
      check_graphs(settings, Wire::host);
    }
  }
  SECTION("pairs of microbatches") {
    Settings settings = parity_settings(parity_llama(0.1f), 1, {2}, 2, 2);
    settings.grid.tp = 2;
    set_pipeline(settings, {.schedule = ScheduleKind::one_f_one_b_pairs, .n_ranks = 1});
    check_graphs(settings, Wire::nccl);
  }
}

TEST_CASE("on devices: data-parallel ranks and ZeRO have the bits of one rank") {
  const Outcome expected = run_on_device(parity_settings(parity_gpt2(0.1f), 1, {1}, 4, 2), 1);
  const Wire by_stage[] = {Wire::host, Wire::nccl, Wire::host, Wire::nccl};
  for (const int zero_stage : {0, 1, 2, 3}) {
    INFO("zero_stage " << zero_stage);
    Settings settings = parity_settings(parity_gpt2(0.1f), 2, {1}, 2, 2);
    settings.zero_stage = zero_stage;
    if (zero_stage == 3) settings.unit_min_parameters = 1;
    check_same(run_on_device(settings, 3, by_stage[zero_stage]), expected);
  }
}

TEST_CASE("on devices: ranks of one machine keep the pieces that their sums leave with them") {
  Settings settings = parity_settings(parity_gpt2(), 4, {1}, 1, 2);
  settings.shares_memory = true;  // which devices do not
  const Outcome expected = run_on_device(settings, 1);
  settings.zero_stage = 1;
  check_same(run_on_device(settings, 2), expected);
}

Settings offloaded(const ModelConfig& model, int dp, std::vector<std::int64_t> samples, int n) {
  Settings settings = parity_settings(model, dp, std::move(samples), n, 2);
  settings.zero_stage = 3;
  settings.unit_min_parameters = 1;
  settings.offloads_parameters = true;
  return settings;
}

// AdamW runs on the CPU, whose body is near the device's; the same bits whatever the timing, the
// wire and the layout.
TEST_CASE("on devices: ranks that keep what they own on the host agree with those that do not") {
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    ModelConfig model = parity_gpt2(0.1f);
    model.compute = compute;
    model.n_layers = 1;
    Settings alone = offloaded(model, 1, {1}, 2);
    const Outcome expected = run_on_device(alone, 1);
    alone.offloads_parameters = false;
    const Outcome on_device = run_on_device(alone, 2);
    if (compute == Dtype::f32) check_near(expected, on_device);
    CHECK(relative_distance(expected.weights, on_device.weights) < 1e-3);
    Settings settings = offloaded(model, 2, {1}, 1);
    settings.threads_per_rank = 2;
    check_same(run_on_device(settings, 3, compute == Dtype::f32 ? Wire::host : Wire::nccl),
               expected);
  }
}

World::Options saving(const Settings& settings, const std::filesystem::path& folder) {
  World::Options options;
  options.train = [settings](int) {
    return std::make_unique<RandomSamples>(11, settings.model.vocab_size, settings.seq_len);
  };
  options.save_to.folder = folder;
  options.save_to.kept = {.n_last = 100};
  return options;
}

TEST_CASE("on devices: a checkpoint of what is owned on the host goes on with the same bits") {
  const TemporaryFolder folder;
  ModelConfig model = parity_gpt2(0.1f);
  model.n_layers = 1;
  Settings settings = offloaded(model, 2, {1}, 1);
  settings.device = Device::cuda;
  for (const bool sharded : {false, true}) {
    settings.saves = {.enabled = true, .interval_steps = 1, .n_steps = settings.n_steps};
    settings.saves_sharded = sharded;
    const std::filesystem::path here = folder / (sharded ? "sharded" : "full");
    const test::EmulatedModule emulated(1);
    const Outcome whole = World(settings, saving(settings, here)).run();
    Settings rest = settings;
    rest.first_step = 1;
    World::Options options = saving(rest, folder / (sharded ? "sharded-on" : "full-on"));
    options.resume = here / checkpoint_name(1);
    const Outcome resumed = World(rest, std::move(options)).run();
    REQUIRE(difference(resumed.weights, whole.weights) == "");
    REQUIRE(resumed.losses.back() == whole.losses.back());
  }
}

TEST_CASE("on devices: a tied embedding that two stages own on the host has the bits of one rank") {
  Settings settings = offloaded(parity_gpt2(), 1, {1, 1}, 1);
  const Outcome expected = run_on_device(settings, 1);
  set_pipeline(settings, {.schedule = ScheduleKind::one_f_one_b, .n_ranks = 2});
  check_same(run_on_device(settings, 2, Wire::nccl), expected);
}

TEST_CASE("on devices: pipelines have the bits of one rank") {
  const Settings alone = parity_settings(parity_gpt2(0.1f), 1, {1, 1}, 2, 2);
  const Outcome expected = run_on_device(alone, 1);
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
    Settings settings = alone;
    settings.grid.pp = 2;
    set_pipeline(settings, {.schedule = kind, .n_ranks = 2});
    const bool is_first = kind == ScheduleKind::one_f_one_b;
    check_same(run_on_device(settings, 3, is_first ? Wire::host : Wire::nccl), expected);
  }
}

TEST_CASE("on devices: tensor-parallel ranks agree with one rank") {
  const Settings alone = parity_settings(parity_llama(0.1f), 1, {2}, 2, 2);
  const Outcome expected = run_on_device(alone, 1);
  for (const bool cuts_rows : {false, true}) {
    Settings settings = alone;
    settings.grid.tp = 2;
    settings.sequence_parallel = cuts_rows;
    set_pipeline(settings);
    const Outcome by_host = run_on_device(settings, 3, Wire::host);
    check_near(by_host, expected);
    check_same(run_on_device(settings, 4, Wire::nccl), by_host);
    set_pipeline(settings, {.schedule = ScheduleKind::one_f_one_b_pairs, .n_ranks = 1});
    check_same(run_on_device(settings, 5, Wire::nccl), by_host);
  }
}

TEST_CASE("on devices: a grid of all three agrees with one rank") {
  const Settings alone = parity_settings(parity_gpt2(0.1f), 1, {1, 1}, 2, 2);
  Settings settings = parity_settings(parity_gpt2(0.1f), 2, {1, 1}, 1, 2);
  settings.grid.pp = 2;
  settings.grid.tp = 2;
  settings.zero_stage = 1;
  set_pipeline(settings, {.n_ranks = 2});
  const Outcome by_nccl = run_on_device(settings, 6, Wire::nccl);
  check_near(by_nccl, run_on_device(alone, 1));
  check_same(run_on_device(settings, 7, Wire::host), by_nccl);
}

TEST_CASE("on devices: ranks that share out a mixture's experts agree with one rank") {
  const Outcome expected = run_on_device(parity_settings(parity_mixtral(0.1f), 1, {1}, 4, 2), 1);
  Settings settings = parity_settings(parity_mixtral(0.1f), 2, {1}, 2, 2);
  settings.spreads_experts = true;
  const Outcome by_host = run_on_device(settings, 3, Wire::host);
  check_near(by_host, expected);
  check_same(run_on_device(settings, 4, Wire::nccl), by_host);
}

/// The logits after each of some tokens, the first ones read at once.
std::vector<std::vector<float>> logits_of(const ModelConfig& model, Device device) {
  WholeModel whole(model);
  const std::vector<ParameterSpec> specs = parameters(model);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    initialize(specs[i], 3, {0, specs[i].n_elements()}, whole.parameter(i));
  }
  const Decoder decoder(model, device);
  Queue queue(device);
  CachedDecoder cached(decoder, whole.values(device), model.max_seq_len, queue);
  std::vector<std::vector<float>> all;
  for (const std::vector<std::int32_t>& some :
       {std::vector<std::int32_t>{3, 1, 30}, {7}, {12, 0}}) {
    const View logits = cached.read(some);
    all.emplace_back(logits.as<float>(), logits.as<float>() + logits.n_elements());
  }
  return all;
}

TEST_CASE("on a device: text is read as on the CPU") {
  for (const ModelConfig& model : {parity_gpt2(), parity_llama(), parity_mixtral()}) {
    const auto on_cpu = logits_of(model, Device::cpu);
    const test::EmulatedModule emulated(9);
    const auto on_device = logits_of(model, Device::cuda);
    REQUIRE(on_device.size() == on_cpu.size());
    for (std::size_t i = 0; i < on_cpu.size(); ++i) {
      for (std::size_t v = 0; v < on_cpu[i].size(); ++v) {
        REQUIRE(on_device[i][v] == Approx(on_cpu[i][v]).margin(1e-5));
      }
    }
  }
}

}  // namespace
}  // namespace llm
