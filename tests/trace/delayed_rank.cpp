// Ranks that train a tiny model with traces, of which one rank's data sleeps once:
//   mpirun -n N delayed_rank FOLDER dp|pp RANK DELAY_MS [STEPS]
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <thread>

#include "src/comm/mpi/mpi_transport.h"
#include "src/train/trace_run.h"
#include "src/train/trainer.h"

using namespace llm;

namespace {

constexpr std::int64_t seq_len = 16;
constexpr std::int64_t slow_step = 3;

/// Of a step from `slow_position` on, one sample comes late.
class SlowSamples : public SampleSource {
 public:
  SlowSamples(std::int64_t slow_position, std::chrono::milliseconds delay)
      : slow_position_(slow_position), delay_(delay) {}
  std::int64_t seq_len() const override { return ::seq_len; }
  std::int64_t n_samples() const override { return 1 << 20; }
  void fetch(std::int64_t position, SampleOut out) override {
    for (std::int64_t t = 0; t < ::seq_len; ++t) {
      if (out.tokens != nullptr) out.tokens[t] = static_cast<std::int32_t>((position + t) % 64);
      if (out.labels != nullptr) out.labels[t] = static_cast<std::int32_t>((position + t + 1) % 64);
    }
    if (position < slow_position_) return;
    std::this_thread::sleep_for(delay_);
    delay_ = {};
  }
  std::string state() const override { return "{}"; }
  void restore(const std::string&) override {}

 private:
  std::int64_t slow_position_;
  std::chrono::milliseconds delay_;
};

Settings settings_of(bool is_pipeline, int n_ranks, std::int64_t n_steps) {
  Settings s;
  s.model = {.hidden_size = 32,
             .n_layers = n_ranks,
             .n_heads = 2,
             .n_kv_heads = 2,
             .intermediate_size = 64,
             .vocab_size = 64,
             .max_seq_len = seq_len,
             .dropout = 0};
  s.seq_len = seq_len;
  s.grid.dp = is_pipeline ? 1 : n_ranks;
  s.partition = {.microbatch_samples = {2, 2}, .n_accumulation_steps = 1, .dp = s.grid.dp};
  s.optimizer = {.lr = {.peak = 1e-3}, .weight_decay = 0.1, .clip_norm = 1};
  set_length(s, {.n_samples = 1 << 20, .epochs = 1, .max_steps = n_steps});
  set_pipeline(s, {.schedule = ScheduleKind::one_f_one_b, .n_ranks = is_pipeline ? n_ranks : 1});
  return s;
}

void train(const MpiSession& session, char** arguments, std::int64_t n_steps) {
  const Settings settings =
      settings_of(std::string(arguments[2]) == "pp", session.n_ranks(), n_steps);
  const bool is_slow = std::stoi(arguments[3]) == session.rank();
  SlowSamples samples(slow_step * settings.partition.global_batch(),
                      std::chrono::milliseconds(is_slow ? std::stoi(arguments[4]) : 0));
  TrainerInputs inputs;
  inputs.train = &samples;
  Loop loop;
  Trace trace = begin_trace(session, trace_facts(settings, arguments[1]));
  loop.trace = &trace;
  MpiTransport transport(session, loop);
  Trainer trainer(loop, transport, settings, inputs);
  trainer.trace_compute(trace);
  trainer.start();
  loop.run();
  end_trace(session, trace, arguments[1]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    fmt::print(stderr, "delayed_rank FOLDER dp|pp RANK DELAY_MS [STEPS]\n");
    return 64;
  }
  MpiSession session;
  return run_and_report(session, [&] {
    train(session, argv, argc == 6 ? std::stoll(argv[5]) : 5);
    return 0;
  });
}
