// Every schedule of a pipeline on real ranks, with compute replaced by sleeps (so that a few cores
// play many stages): one flush on the wall beside the same on the virtual clock of simulate().
//   mpirun -n 8 pipeline_bench [microbatches=16] [forward_ms=8] [repeats=3] [trace=DIR]
// `trace` writes each rank's timeline of the last repeat into DIR/<schedule>.
#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "actors/stage.h"
#include "schedules/pipeline_buffers.h"
#include "schedules/simulation.h"
#include "src/comm/mpi/mpi_transport.h"
#include "src/comm/queue_poller.h"
#include "src/rt/clock.h"
#include "src/train/trace_run.h"
#include "tensor/storage.h"

using namespace llm;

namespace {

/// Sleeps where a decoder would compute.
class SleepCompute : public StageCompute {
 public:
  SleepCompute(Queue& queue, double forward_ms, int n_chunks)
      : queue_(queue), unit_ms_(forward_ms / n_chunks), output_(rows * width * 4) {}

  void begin_step(std::int64_t, float) override {}
  Task<MutView> forward(const ForwardWork&) override {
    sleep(costs_.forward);
    co_return output_.view(Dtype::f32, {rows, width});
  }
  Task<> backward(const BackwardWork& work) override {
    sleep(costs_.of(work.kind));
    co_return;
  }
  Task<MutView> beside(const ForwardWork& forward, const BackwardWork& backward) override {
    sleep(costs_.forward + costs_.of(backward.kind));
    queue_.notify(forward.done);
    queue_.notify(backward.done);
    co_return output_.view(Dtype::f32, {rows, width});
  }
  void release(const At&) override {}
  void embedding_backward(const At&, const Microbatch&, View) override {}
  Task<> validate(std::int64_t, int, const Microbatch&, MutView, LossSum&) override { co_return; }

  static constexpr std::int64_t rows = 16;
  static constexpr std::int64_t width = 64;

 private:
  /// In tiles of half a millisecond, since messages move between tiles; each to a time from the
  /// action's begin, so that a late wake-up does not add up.
  void sleep(double units) {
    const double ms = units * unit_ms_;
    const auto n_tiles = static_cast<std::int64_t>(ms * 2);
    auto begin_ns = std::make_shared<std::int64_t>(0);
    queue_.tiles("sleep", n_tiles, [=](std::int64_t tile) {
      if (tile == 0) *begin_ns = now_ns();
      const double end_ms = ms * static_cast<double>(tile + 1) / static_cast<double>(n_tiles);
      const std::int64_t end_ns = *begin_ns + static_cast<std::int64_t>(end_ms * 1e6);
      std::this_thread::sleep_for(
          std::chrono::nanoseconds(std::max<std::int64_t>(0, end_ns - now_ns())));
    });
  }

  Queue& queue_;
  const ActionCosts costs_;
  const double unit_ms_;
  const Storage output_;
};

Stage::Plan plan_of(const Pipeline& pipeline, int rank) {
  Stage::Plan plan;
  plan.pipeline = pipeline;
  plan.rank = rank;
  plan.ranks.clear();
  for (int r = 0; r < pipeline.n_ranks; ++r) plan.ranks.push_back(r);
  plan.first_tag = 100;
  plan.n_gradient_buffers = pipeline_buffers(pipeline).gradients + 1;
  plan.microbatch_samples.assign(static_cast<std::size_t>(pipeline.n_microbatches), 1);
  plan.n_global_microbatches = pipeline.n_microbatches;
  plan.seq_len = SleepCompute::rows;
  plan.width = SleepCompute::width;
  plan.n_steps = 1;
  return plan;
}

/// Milliseconds of one flush: from all ranks' begin to the last one's end.
double flush_ms(const MpiSession& session, const Pipeline& pipeline, double forward_ms,
                Trace* trace) {
  Loop loop;
  loop.trace = trace;
  MpiTransport transport(session, loop);
  Queue queue;
  const int row = trace->add_row("compute queue");
  queue.observe([trace, row](const char* op, std::int64_t begin_ns, std::int64_t end_ns) {
    trace->op(row, op, begin_ns, end_ns);
  });
  QueuePoller poller(queue, 1);
  loop.add_poller(poller);
  SleepCompute compute(queue, forward_ms, pipeline.n_chunks);
  const Port<LossReport> losses([](std::int64_t, LossReport) {});
  Stage stage(transport, queue, plan_of(pipeline, session.rank()), compute,
              Stage::Outbox{losses, losses, Port<Ready>([](std::int64_t, Ready) {})});
  for (int m = 0; m < pipeline.n_microbatches; ++m) {
    stage.microbatches().put(m, Microbatch(m, 1, View(), View()));
  }
  stage.parameters_updated().put(0, ParametersUpdated());
  stage.spawn();
  session.barrier();
  const std::int64_t begin_ns = now_ns();
  loop.run();
  const std::int64_t end_ns = now_ns();
  loop.drop_actors();
  loop.remove_poller(poller);
  double longest = 0;
  for (const std::string& ms :
       session.gather(std::to_string(static_cast<double>(end_ns - begin_ns) * 1e-6))) {
    longest = std::max(longest, std::stod(ms));
  }
  session.barrier();
  return longest;
}

struct Case {
  const char* name;
  ScheduleKind kind;
  int n_chunks;
};

using Options = std::map<std::string, std::string>;

void run(const MpiSession& session, Options& options) {
  const double forward_ms = std::stod(options["forward_ms"]);
  const int n = std::stoi(options["microbatches"]);
  if (session.rank() == 0) {
    fmt::print(
        "{} ranks, {} microbatches, a forward of {} ms on each rank\n{:<16} {:>14} {:>13} "
        "{:>6} {:>16} {:>15}\n",
        session.n_ranks(), n, forward_ms, "schedule", "simulated ms", "measured ms", "ratio",
        "simulated bubble", "measured bubble");
  }
  for (const Case& c :
       {Case{"gpipe", ScheduleKind::gpipe, 1}, Case{"1f1b", ScheduleKind::one_f_one_b, 1},
        Case{"1f1b_pairs", ScheduleKind::one_f_one_b_pairs, 1},
        Case{"interleaved 2", ScheduleKind::interleaved, 2},
        Case{"zero_bubble", ScheduleKind::zero_bubble, 1},
        Case{"zero_bubble_v", ScheduleKind::zero_bubble_v, 2}}) {
    const Pipeline pipeline = make_pipeline(
        c.kind, {.n_ranks = session.n_ranks(), .n_chunks = c.n_chunks, .n_microbatches = n});
    const Simulation simulation = simulate(pipeline);
    const double simulated_ms = simulation.makespan * forward_ms / c.n_chunks;
    double best = 1e30;
    for (int repeat = 0; repeat < std::stoi(options["repeats"]); ++repeat) {
      Trace trace = begin_trace(session, {.layout = c.name,
                                          .grid = {.dp = 1, .pp = session.n_ranks(), .tp = 1},
                                          .pipeline = pipeline,
                                          .n_flushes = 1,
                                          .run_dir = ""});
      best = std::min(best, flush_ms(session, pipeline, forward_ms, &trace));
      if (options["trace"].empty()) continue;
      const std::string folder = options["trace"] + "/" + c.name;
      std::filesystem::create_directories(folder);
      end_trace(session, trace, folder);
    }
    if (session.rank() != 0) continue;
    const double busy = (1 - simulation.bubble()) * simulated_ms;
    fmt::print("{:<16} {:>14.1f} {:>13.1f} {:>6.3f} {:>15.1f}% {:>14.1f}%\n", c.name, simulated_ms,
               best, best / simulated_ms, 100 * simulation.bubble(), 100 * (1 - busy / best));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options{{"microbatches", "16"}, {"forward_ms", "8"}, {"repeats", "3"}, {"trace", ""}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equal = text.find('=');
    if (equal == std::string::npos || !options.contains(text.substr(0, equal))) {
      fmt::print(stderr, "pipeline_bench: '{}' is not one of its options\n", text);
      return 64;
    }
    options[text.substr(0, equal)] = text.substr(equal + 1);
  }
  MpiSession session;
  return run_and_report(session, [&] {
    run(session, options);
    return 0;
  });
}
