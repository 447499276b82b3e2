// A training step of a GPT-2 by the same Trainer as llm-train's, on one rank or, under mpirun, on
// several: rank 0 prints a line of JSON like the peer's (tests/bench/peer_torch.py).
//   step_bench [model=10m|124m] [batch=8] [seq=256] [microbatches=1] [accumulation=tree|sequential]
//              [pp=1] [schedule=1f1b|1f1b_pairs|gpipe|zero_bubble] [recompute=0|1] [zero=0|1|2]
//              [shared=1|0] [steps=8] [warm=2] [threads=1] [dtype=f32|bf16|f16] [trace=FOLDER]
// `batch` is a rank's. `trace` writes each rank's timeline into the folder, as llm-train --trace.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/base/philox.h"
#include "src/comm/loopback/loopback.h"
#include "src/comm/mpi/mpi_transport.h"
#include "src/comm/mpi/shared_ranks.h"
#include "src/rt/clock.h"
#include "src/train/plan_report.h"
#include "src/train/trainer.h"

using namespace llm;

namespace {

/// Random tokens: what is learned does not matter here.
class RandomSamples : public SampleSource {
 public:
  RandomSamples(std::int64_t seq_len, std::int64_t vocab_size)
      : seq_len_(seq_len), vocab_(vocab_size) {}
  std::int64_t seq_len() const override { return seq_len_; }
  std::int64_t n_samples() const override { return 1 << 20; }
  void fetch(std::int64_t position, SampleOut out) override {
    for (std::int64_t t = 0; t < seq_len_; ++t) {
      if (out.tokens != nullptr) out.tokens[t] = token(position, t);
      if (out.labels != nullptr) out.labels[t] = token(position, t + 1);
    }
  }
  std::string state() const override { return "{}"; }
  void restore(const std::string&) override {}

 private:
  std::int32_t token(std::int64_t position, std::int64_t t) const {
    const auto index = static_cast<std::uint64_t>(position * (seq_len_ + 1) + t);
    return static_cast<std::int32_t>(philox_at(7, index)[0] % static_cast<std::uint64_t>(vocab_));
  }
  std::int64_t seq_len_;
  std::int64_t vocab_;
};

Settings settings_of(std::map<std::string, std::string>& options, int n_ranks) {
  Settings s;
  const bool large = options["model"] == "124m";
  s.model = {.hidden_size = large ? 768 : 384,
             .n_layers = large ? 12 : 6,
             .n_heads = large ? 12 : 6,
             .n_kv_heads = large ? 12 : 6,
             .intermediate_size = large ? 3072 : 1536,
             .vocab_size = large ? 50304 : 256,
             .max_seq_len = std::stoll(options["seq"]),
             .dropout = 0};
  s.seq_len = std::stoll(options["seq"]);
  s.partition = {.microbatch_samples = std::vector<std::int64_t>(
                     static_cast<std::size_t>(std::stoi(options["microbatches"])),
                     std::stoll(options["batch"])),
                 .n_accumulation_steps = 1,
                 .dp = n_ranks / std::stoi(options["pp"]) / std::stoi(options["tp"])};
  s.grid.dp = s.partition.dp;
  s.grid.tp = std::stoi(options["tp"]);
  s.sequence_parallel = options["sequence"] == "1";
  s.model.compute = options["dtype"] == "bf16"  ? Dtype::bf16
                    : options["dtype"] == "f16" ? Dtype::f16
                                                : Dtype::f32;
  s.accumulation =
      options["accumulation"] == "tree" ? Accumulation::tree : Accumulation::sequential;
  s.optimizer = {.lr = {.peak = 1e-4}, .weight_decay = 0.1, .clip_norm = 0};
  s.threads_per_rank = std::stoi(options["threads"]);
  s.seed = 1;
  const std::int64_t n_steps = std::stoll(options["warm"]) + std::stoll(options["steps"]);
  set_length(s, {.n_samples = 1 << 20, .epochs = 1, .max_steps = n_steps});
  const std::map<std::string, ScheduleKind> kinds{{"gpipe", ScheduleKind::gpipe},
                                                  {"1f1b", ScheduleKind::one_f_one_b},
                                                  {"1f1b_pairs", ScheduleKind::one_f_one_b_pairs},
                                                  {"zero_bubble", ScheduleKind::zero_bubble}};
  set_pipeline(s, {.schedule = kinds.at(options["schedule"]), .n_ranks = std::stoi(options["pp"])});
  s.recompute_blocks = options["recompute"] == "1";
  s.zero_stage = std::stoi(options["zero"]);
  s.unit_min_parameters = std::stoll(options["units"]);
  s.gather_policy = {std::stoi(options["ahead"]), options["reshard"] == "1"};
  return s;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Options = std::map<std::string, std::string>;
using Gather = std::function<std::vector<std::string>(const std::string&)>;

std::int64_t peak_resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

std::int64_t planned_mib(const Settings& settings, int rank) {
  std::int64_t planned = 0;
  for (const LedgerEntry& entry : memory_ledger(settings, rank)) planned += entry.n_bytes;
  return planned >> 20;
}

void print_figures(Options& options, const Settings& settings, std::vector<double> seconds,
                   double loss, const std::vector<std::string>& resident_mib) {
  seconds.erase(seconds.begin(), seconds.begin() + std::stoll(options["warm"]));
  const double step = median(seconds);
  const double tokens_per_second = static_cast<double>(settings.tokens_per_step()) / step;
  std::vector<std::int64_t> planned;
  for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
    planned.push_back(planned_mib(settings, rank));
  }
  fmt::print(
      "{{\"engine\": \"llm-train\", \"model\": \"{}\", \"mode\": \"{}\", \"B\": {}, \"T\": {}, "
      "\"world\": {}, \"th\": {}, \"ms\": {:.1f}, \"min_ms\": {:.1f}, \"tok_s\": {:.1f}, "
      "\"gflops\": {:.1f}, \"rss_MiB\": {}, \"planned_MiB\": {}, \"loss\": {:.3f}, "
      "\"ranks_rss_MiB\": [{}], \"ranks_planned_MiB\": [{}]}}\n",
      options["model"], options["dtype"], options["batch"], options["seq"], settings.grid.n_ranks(),
      options["threads"], step * 1e3, *std::min_element(seconds.begin(), seconds.end()) * 1e3,
      tokens_per_second,
      tokens_per_second * flops_per_token(settings.model, settings.seq_len) * 1e-9,
      peak_resident_mib(), planned[0], loss, fmt::join(resident_mib, ", "),
      fmt::join(planned, ", "));
}

void train(Options& options, Loop& loop, Transport& transport, bool shares_memory,
           const Gather& gather) {
  Settings settings = settings_of(options, transport.n_ranks());
  settings.shares_memory = shares_memory && options["shared"] == "1";
  RandomSamples samples(settings.seq_len, settings.model.vocab_size == 50304 ? 50257 : 256);
  std::vector<double> seconds;
  double loss = 0;
  TrainerInputs inputs;
  inputs.train = &samples;
  inputs.step_done = Port<StepMetrics>([&](std::int64_t, StepMetrics metrics) {
    seconds.push_back(metrics.seconds);
    loss = metrics.loss;
  });
  std::optional<Trace> trace;
  if (!options["trace"].empty()) loop.trace = &trace.emplace(transport.rank(), now_ns());
  Trainer trainer(loop, transport, settings, inputs);
  if (trace) trainer.trace_compute(*trace);
  trainer.start();
  loop.run();
  if (trace) trace->write(fmt::format("{}/rank-{}.json", options["trace"], transport.rank()));
  const std::vector<std::string> resident = gather(std::to_string(peak_resident_mib()));
  if (transport.rank() == 0) print_figures(options, settings, seconds, loss, resident);
}

}  // namespace

int main(int argc, char** argv) {
  Options options{
      {"model", "10m"},         {"batch", "8"},   {"seq", "256"},   {"microbatches", "1"},
      {"steps", "8"},           {"warm", "2"},    {"threads", "1"}, {"dtype", "f32"},
      {"accumulation", "tree"}, {"trace", ""},    {"pp", "1"},      {"schedule", "1f1b"},
      {"recompute", "0"},       {"zero", "0"},    {"shared", "1"},  {"units", "1"},
      {"ahead", "1"},           {"reshard", "1"}, {"tp", "1"},      {"sequence", "0"}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equal = text.find('=');
    if (equal == std::string::npos || !options.contains(text.substr(0, equal))) {
      fmt::print(stderr, "step_bench: '{}' is not one of its options\n", text);
      return 64;
    }
    options[text.substr(0, equal)] = text.substr(equal + 1);
  }
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    Loop loop;
    LoopbackNetwork network(loop, 1, 0);
    train(options, loop, network.rank(0), false,
          [](const std::string& own) { return std::vector<std::string>{own}; });
    return 0;
  }
  MpiSession session;
  return run_and_report(session, [&] {
    Loop loop;
    MpiTransport transport(session, loop);
    train(options, loop, transport, ranks_share_memory(session),
          [&session](const std::string& own) { return session.gather(own); });
    return 0;
  });
}
