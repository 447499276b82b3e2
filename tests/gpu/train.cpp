// Tokens per second of whole training steps in bf16, by the Trainer of llm-train on one rank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/comm/loopback/loopback.h"
#include "src/train/trainer.h"
#include "tests/gpu/report.h"
#include "tests/gpu/speed.h"
#include "tests/parity/world.h"

namespace llm::gpu {
namespace {

ModelConfig gpt2_124m() {
  return {.hidden_size = 768,
          .n_layers = 12,
          .n_heads = 12,
          .n_kv_heads = 12,
          .intermediate_size = 3072,
          .vocab_size = 50'304,
          .max_seq_len = 1024,
          .dropout = 0};
}

/// The extents of TinyLlama, 1.1 billion parameters.
ModelConfig llama_1b() {
  return {.hidden_size = 2048,
          .n_layers = 22,
          .n_heads = 32,
          .n_kv_heads = 4,
          .intermediate_size = 5632,
          .vocab_size = 32'000,
          .max_seq_len = 2048,
          .dropout = 0,
          .norm = Norm::rms_norm,
          .positions = Positions::rotary,
          .activation = Activation::silu,
          .gated = true,
          .qkv_bias = false,
          .mlp_bias = false,
          .tie_embeddings = false};
}

struct Run {
  std::string name;
  ModelConfig model;
  std::int64_t n_samples;  ///< of a step
  std::int64_t n_steps;    ///< of which the first two are not counted
};

Settings settings_of(const Run& run) {
  Settings settings = parity_settings(run.model, 1, {run.n_samples}, 1, run.n_steps);
  settings.model.compute = Dtype::bf16;
  settings.seq_len = run.model.max_seq_len;
  settings.optimizer.lr = {.peak = 1e-4, .warmup_steps = 2, .n_steps = run.n_steps};
  settings.optimizer.clip_norm = 1;
  settings.bucket_bytes = std::int64_t{64} << 20;
  settings.device = Device::cuda;
  set_pipeline(settings);
  return settings;
}

struct Measured {
  double step_seconds = 0;  ///< the median
  double loss = 0;          ///< of the last step
  Queue::GraphCounts graphs;
};

Measured train(const Settings& settings) {
  Loop loop;
  LoopbackNetwork network(loop, 1, 0);
  RandomSamples samples(7, settings.model.vocab_size, settings.seq_len);
  std::vector<double> seconds;
  Measured measured;
  TrainerInputs inputs;
  inputs.train = &samples;
  inputs.step_done = Port<StepMetrics>([&](std::int64_t, StepMetrics metrics) {
    seconds.push_back(metrics.seconds);
    measured.loss = metrics.loss;
  });
  Trainer trainer(loop, network.rank(0), settings, std::move(inputs));
  trainer.start();
  loop.run();
  seconds.erase(seconds.begin(), seconds.begin() + 2);
  std::sort(seconds.begin(), seconds.end());
  measured.step_seconds = seconds[seconds.size() / 2];
  measured.graphs = trainer.compute().graph_counts();
  return measured;
}

void measure(const Run& run, double peak, const Options& options, Report& report) {
  Settings settings = settings_of(run);
  const Measured measured = train(settings);
  const double step = measured.step_seconds;
  const double rate = static_cast<double>(settings.tokens_per_step()) / step;
  const double flops = rate * flops_per_token(settings.model, settings.seq_len);
  report.line(run.name + " step", 1e3 * step, "ms");
  report.line(run.name + " tokens", rate, "tokens/s");
  // Of the peak that the largest product reaches, attention counted without its mask.
  if (!options.is_small) report.line(run.name + " MFU", 100 * flops / peak, "%");
  // Labels are drawn at random: nothing can be learned of them.
  const double of_nothing = std::log(static_cast<double>(settings.model.vocab_size));
  report.line(run.name + " loss, from ln(vocabulary)", std::fabs(measured.loss - of_nothing),
              "nats", at_most(1));
  settings.least_graph_ops = 8;
  const Measured with_graphs = train(settings);
  report.line(run.name + " step with CUDA graphs", 100 * with_graphs.step_seconds / step,
              "% of without");
  const Queue::GraphCounts& counts = with_graphs.graphs;
  report.line(run.name + " graphs", static_cast<double>(counts.n_captured), "captured");
  report.line(run.name + " loss with graphs, from without",
              std::fabs(with_graphs.loss - measured.loss), "nats", at_most(0));
}

}  // namespace

void check_training(const Options& options, Report& report) {
  if (options.is_small) {
    measure({"tiny GPT-2", parity_gpt2(), 1, 3}, 0, options, report);
    measure({"tiny Llama", parity_llama(), 1, 3}, 0, options, report);
    return;
  }
  const double peak = product_flops_per_second(8192);
  report.line("largest product bf16", 1e-12 * peak, "TFLOP/s");
  measure({"GPT-2 124M", gpt2_124m(), 16, 22}, peak, options, report);
  measure({"Llama 1.1B", llama_1b(), 4, 12}, peak, options, report);
}

}  // namespace llm::gpu
