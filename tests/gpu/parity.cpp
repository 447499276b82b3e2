// Whole training runs on the device, all ranks in this process on it, against the CPU's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/gpu/report.h"
#include "tests/parity/world.h"

namespace llm::gpu {
namespace {

constexpr std::uint32_t ignored_percent = 20;

Outcome run_on(Device device, Settings settings, std::uint64_t seed) {
  settings.device = device;
  return run_world(settings, seed, ignored_percent);
}

/// Of what the CPU gave.
struct Tolerances {
  double weights = 1e-5;
  double gradients = 1e-5;
  double losses = 1e-5;
};

void report_near(Report& report, const std::string& name, const Outcome& got, const Outcome& wanted,
                 const Tolerances& tolerances) {
  double losses = got.losses.size() == wanted.losses.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(got.losses.size(), wanted.losses.size()); ++i) {
    losses = std::max(losses, std::fabs(got.losses[i] / wanted.losses[i] - 1));
  }
  report.line(name + ": weights", relative_distance(got.weights, wanted.weights), "apart",
              at_most(tolerances.weights));
  report.line(name + ": gradients", relative_distance(got.gradients, wanted.gradients), "apart",
              at_most(tolerances.gradients));
  report.line(name + ": losses", losses, "apart", at_most(tolerances.losses));
}

void report_same(Report& report, const std::string& name, const Outcome& got,
                 const Outcome& wanted) {
  const std::string apart = difference(got.weights, wanted.weights);
  if (!apart.empty()) report.failure(name, apart);
  if (got.losses != wanted.losses) report.failure(name, "other losses");
  if (apart.empty() && got.losses == wanted.losses) report.note(name + ": the same bits");
}

/// A rank alone against the CPU, and against itself.
void check_alone(Report& report, const std::string& name, const Settings& settings,
                 const Tolerances& tolerances) {
  const Outcome on_device = run_on(Device::cuda, settings, 1);
  report_near(report, name, on_device, run_on(Device::cpu, settings, 1), tolerances);
  report_same(report, name + " again", run_on(Device::cuda, settings, 2), on_device);
}

void check_models(Report& report) {
  check_alone(report, "gpt2 f32", parity_settings(parity_gpt2(0.1f), 1, {2, 1}, 2, 3), {});
  check_alone(report, "llama f32", parity_settings(parity_llama(0.1f), 1, {2, 1}, 2, 3), {});
  check_alone(report, "mixtral f32", parity_settings(parity_mixtral(0.1f), 1, {2, 1}, 2, 3), {});
  for (const Dtype compute : {Dtype::bf16, Dtype::f16}) {
    ModelConfig model = parity_mixtral();
    model.compute = compute;
    Settings settings = parity_settings(model, 1, {2, 1}, 1, 3);
    if (compute == Dtype::f16) settings.optimizer.loss_scale = LossScaleConfig{};
    const double tolerance = compute == Dtype::bf16 ? 2e-2 : 3e-3;
    check_alone(report, fmt::format("mixtral {}", name_of(compute)), settings,
                {tolerance, 5 * tolerance, tolerance});
  }
}

void check_data_parallel(Report& report) {
  const Outcome alone = run_on(Device::cuda, parity_settings(parity_gpt2(0.1f), 1, {1}, 4, 2), 1);
  for (const int zero_stage : {0, 1, 2, 3}) {
    Settings settings = parity_settings(parity_gpt2(0.1f), 2, {1}, 2, 2);
    settings.zero_stage = zero_stage;
    if (zero_stage == 3) settings.unit_min_parameters = 1;
    report_same(report, fmt::format("2 data-parallel ranks, ZeRO {}", zero_stage),
                run_on(Device::cuda, settings, 3), alone);
  }
}

void check_pipelines(Report& report) {
  const Settings one = parity_settings(parity_gpt2(0.1f), 1, {1, 1}, 2, 2);
  const Outcome alone = run_on(Device::cuda, one, 1);
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
    Settings settings = one;
    settings.grid.pp = 2;
    set_pipeline(settings, {.schedule = kind, .n_ranks = 2});
    report_same(
        report,
        kind == ScheduleKind::one_f_one_b ? "pipeline of 2, 1f1b" : "pipeline of 2, zero bubble",
        run_on(Device::cuda, settings, 3), alone);
  }
}

void check_graphs(Report& report) {
  ModelConfig model = parity_gpt2(0.1f);
  model.n_layers = 1;
  Settings settings = parity_settings(model, 1, {1}, 1, 3);
  const Outcome without = run_on(Device::cuda, settings, 1);
  settings.least_graph_ops = 3;
  const Outcome with = run_on(Device::cuda, settings, 1);
  report_same(report, "CUDA graphs", with, without);
  report.line("CUDA graphs: launched", static_cast<double>(with.graphs[0].n_launched), "times",
              at_least(1));
}

void check_tensor_parallel(Report& report) {
  const Settings one = parity_settings(parity_llama(0.1f), 1, {2}, 2, 2);
  const Outcome alone = run_on(Device::cuda, one, 1);
  for (const bool cuts_rows : {false, true}) {
    Settings settings = one;
    settings.grid.tp = 2;
    settings.sequence_parallel = cuts_rows;
    set_pipeline(settings);
    report_near(report, cuts_rows ? "2 tensor-parallel ranks, rows cut" : "2 tensor-parallel ranks",
                run_on(Device::cuda, settings, 3), alone, {});
  }
}

void check_experts(Report& report) {
  const Outcome alone =
      run_on(Device::cuda, parity_settings(parity_mixtral(0.1f), 1, {1}, 4, 2), 1);
  Settings settings = parity_settings(parity_mixtral(0.1f), 2, {1}, 2, 2);
  settings.spreads_experts = true;
  report_near(report, "experts spread over 2 ranks", run_on(Device::cuda, settings, 3), alone, {});
}

/// Wide enough for tensor cores and the library's large tiles.
void check_wide(Report& report) {
  for (const Dtype compute : {Dtype::f32, Dtype::bf16}) {
    ModelConfig model = parity_llama();
    model.hidden_size = 256;
    model.n_layers = 3;
    model.intermediate_size = 512;
    model.vocab_size = 1000;
    model.max_seq_len = 128;
    model.compute = compute;
    Settings settings = parity_settings(model, 1, {4}, 1, 4);
    settings.seq_len = 128;
    settings.optimizer.lr.peak = 1e-3;
    set_pipeline(settings);
    // On the CPU, bf16 and f32 are 2e-3, 1e-2 and 5e-5 apart.
    const bool is_f32 = compute == Dtype::f32;
    check_alone(report, fmt::format("llama of width 256 {}", name_of(compute)), settings,
                is_f32 ? Tolerances{1e-4, 1e-4, 1e-5} : Tolerances{5e-3, 4e-2, 1e-3});
  }
}

/// What an emulated device takes a second for; tests/parity has the rest on it.
void check_little(Report& report) {
  check_alone(report, "gpt2 f32", parity_settings(parity_gpt2(0.1f), 1, {1}, 1, 2), {});
  ModelConfig model = parity_gpt2();
  model.n_layers = 1;
  const Outcome alone = run_on(Device::cuda, parity_settings(model, 1, {1}, 2, 1), 1);
  Settings settings = parity_settings(model, 2, {1}, 1, 1);
  settings.zero_stage = 3;
  settings.unit_min_parameters = 1;
  report_same(report, "2 data-parallel ranks, ZeRO 3", run_on(Device::cuda, settings, 3), alone);
}

}  // namespace

void check_parity(const Options& options, Report& report) {
  if (options.is_small) {
    check_little(report);
    return check_graphs(report);
  }
  check_models(report);
  check_data_parallel(report);
  check_pipelines(report);
  check_graphs(report);
  check_tensor_parallel(report);
  check_experts(report);
  check_wide(report);
}

}  // namespace llm::gpu
