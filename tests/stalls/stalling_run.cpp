// A training run of real ranks that stops moving, or breaks, in the way that its argument names:
// the driver checks what the ranks make of it. Messages are lost on rank 1, which also is the rank
// that stops, loops or leaves, but where it says so.
#include <mpi.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "src/base/error.h"
#include "src/comm/control.h"
#include "src/comm/mpi/mpi_transport.h"
#include "src/train/stalls.h"
#include "src/train/trainer.h"
#include "tests/parity/world.h"
#include "tests/support/faulty_transport.h"

namespace {

std::atomic<bool> disk_is_gone = false;

[[noreturn]] void forever() {
  for (;;) pause();
}

}  // namespace

/// In place of the C library's: a disk that never answers.
extern "C" int fsync(int descriptor) {
  if (disk_is_gone) forever();
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

namespace llm {
namespace {

using Fate = FaultyTransport::Fate;

constexpr std::int64_t n_steps = 6;
constexpr std::int64_t faulty_step = 2;
constexpr int unused_tag = 30'000;
constexpr int unused_channel = 99;

// What the trainer calls its channels.
constexpr int channel_loss = 1;
constexpr int channel_step_facts = 3;
constexpr int channel_save_order = 6;
constexpr int channel_part_written = 7;

struct Run {
  std::string fault;
  std::string folder;
  int rank = 0;
  bool is(const char* name) const { return fault == name; }
};

Settings settings_of(const Run& run, int n_ranks) {
  Settings settings = parity_settings(parity_llama(), n_ranks, {2}, 2, n_steps);
  const bool is_pipeline = run.is("lost activation") || run.is("lost input_grad");
  if (is_pipeline || run.is("lost sum of a layer")) {
    settings = parity_settings(parity_llama(), 1, {2}, 2, n_steps);
    settings.grid.tp = is_pipeline ? 1 : n_ranks;
    set_pipeline(settings, {.n_ranks = is_pipeline ? n_ranks : 1});
  }
  if (run.is("lost parameters") || run.is("lost receipt")) settings.zero_stage = 1;
  if (run.is("blocked disk") || run.is("lost order") || run.is("lost receipt")) {
    settings.saves = {.enabled = true, .interval_steps = faulty_step, .n_steps = n_steps};
    settings.saves_sharded = true;
  }
  if (run.is("finished early") && run.rank == 1) settings.n_steps = faulty_step;
  return settings;
}

/// Of tensors that rank 1 sends; messages of the faulty step alone.
FaultyTransport::TensorFault tensor_fault(const Run& run) {
  return [run, is_done = false](int, int& tag, Header& header) mutable {
    const auto hits = [&](MessageKind kind) {
      return !is_done && run.rank == 1 && header.kind == kind && header.step == faulty_step;
    };
    const auto once = [&](Fate fate) {
      is_done = true;
      return fate;
    };
    if (hits(MessageKind::partial_sum)) {
      if (run.is("lost piece") || run.is("lost sum of a layer")) return once(Fate::is_lost);
      if (run.is("duplicated piece")) return once(Fate::arrives_twice);
      if (run.is("short piece")) return once(Fate::arrives_short);
      if (run.is("piece of another dtype")) return once(Fate::changes_dtype);
      if (run.is("piece of another step")) return ++header.step, once(Fate::arrives);
      if (run.is("mis-tagged piece")) return tag = unused_tag, once(Fate::arrives);
    }
    // The calls of a layer are numbered, and are steps of their own.
    if (run.is("lost sum of a layer") && run.rank == 1 && !is_done &&
        header.kind == MessageKind::partial_sum) {
      return once(Fate::is_lost);
    }
    if (run.is("lost input_grad") && hits(MessageKind::input_grad)) return once(Fate::is_lost);
    const bool loses_gathered = run.is("lost parameters") || run.is("lost sum");
    if (loses_gathered && hits(MessageKind::gathered)) return once(Fate::is_lost);
    const bool is_activation = header.kind == MessageKind::activation;
    if (run.is("lost activation") && is_activation && header.step == faulty_step && !is_done) {
      return once(Fate::is_lost);  // of rank 0
    }
    return Fate::arrives;
  };
}

FaultyTransport::ControlFault control_fault(const Run& run) {
  return [run, is_done = false](int, ControlHeader& header) mutable {
    const auto hits = [&](int channel, std::int64_t key) {
      return !is_done && header.channel == channel && header.key >= key;
    };
    const auto once = [&](Fate fate) {
      is_done = true;
      return fate;
    };
    if (run.rank == 1 && hits(channel_step_facts, 2 * faulty_step)) {
      if (run.is("lost step_facts")) return once(Fate::is_lost);
      if (run.is("mis-sent step_facts")) {
        header.channel = unused_channel;
        return once(Fate::arrives);
      }
    }
    if (run.is("lost loss") && run.rank == 1 && hits(channel_loss, 0)) return once(Fate::is_lost);
    if (run.is("lost receipt") && run.rank == 1 && hits(channel_part_written, 0)) {
      return once(Fate::is_lost);
    }
    if (run.is("lost order") && hits(channel_save_order, 0)) return once(Fate::is_lost);
    return Fate::arrives;
  };
}

/// What goes wrong on rank 1's thread, at the faulty step.
void break_down(const Run& run, MpiSession& session) {
  if (run.is("stopped")) raise(SIGSTOP);
  if (run.is("killed")) raise(SIGKILL);
  if (run.is("exit")) std::exit(0);
  if (run.is("looping actor")) {
    volatile bool goes_on = true;
    while (goes_on) {
    }
  }
  if (run.is("stuck in MPI")) session.barrier();
  if (run.is("finalized early")) MPI_Finalize();
}

class Samples : public RandomSamples {
 public:
  Samples(const Settings& settings, bool blocks)
      : RandomSamples(11, settings.model.vocab_size, settings.seq_len), blocks_(blocks) {}
  void fetch(std::int64_t position, SampleOut out) override {
    if (blocks_ && ++n_ > 8) forever();
    RandomSamples::fetch(position, out);
  }

 private:
  bool blocks_;
  int n_ = 0;
};

const WaitName wait_ball{"ball", "the other rank"};

/// Each waits for what the other sends after it got its own.
Task<> waits_first(Inbox<Ready>& inbox, Port<Ready> to_peer) {
  co_await inbox.take(faulty_step);
  to_peer(faulty_step, Ready{});
}

int train(MpiSession& session, const Run& run, double timeout_seconds) {
  const Settings settings = settings_of(run, session.n_ranks());
  Loop loop({.stall_warning_seconds = 0, .stall_timeout_seconds = 0, .warn = {}});
  MpiTransport wire(session, loop);
  FaultyTransport transport(wire, tensor_fault(run), control_fault(run));
  std::optional<StallMonitor> monitor;
  Samples samples(settings, run.is("blocked data") && run.rank == 1);
  TrainerInputs inputs;
  inputs.train = &samples;
  inputs.save_to.folder = std::filesystem::path(run.folder) / "checkpoints";
  int n_asked = 0;
  inputs.stop_requested = [&] {
    const bool breaks = ++n_asked == faulty_step;
    if (breaks && run.rank == 1) break_down(run, session);
    if (breaks && run.rank == 0 && run.is("blocked disk")) disk_is_gone = true;
    return false;
  };
  Trainer trainer(loop, transport, settings, inputs);
  trainer.start();
  if (run.is("slow") && run.rank == 1) {
    trainer.compute().tiles("slow", 60, [](std::int64_t) { usleep(100'000); });
  }
  if (run.is("endless op") && run.rank == 1) trainer.compute().work("endless", [] { forever(); });
  std::optional<MpiTransport> second_wire;
  std::optional<ControlPlane> control;
  Inbox<Ready> inbox(loop, WaitName("ball", "rank " + std::to_string(1 - run.rank)));
  if (run.is("cycle")) {
    control.emplace(second_wire.emplace(session, loop));
    control->connect(1, inbox);
    loop.spawn("juggler", waits_first(inbox, control->port<Ready>(1 - run.rank, 1)));
  }
  session.barrier();
  monitor.emplace(transport,
                  stall_options(session, trainer, settings, timeout_seconds, run.folder));
  loop.run();
  loop.spawn("end_of_run", monitor->end_together());
  loop.run();
  monitor->close();
  return 0;
}

}  // namespace
}  // namespace llm

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: stalling_run FAULT TIMEOUT_SECONDS FOLDER\n", stderr);
    return 64;
  }
  llm::MpiSession session;
  return llm::run_and_report(session, [&] {
    const llm::Run run{argv[1], argv[3], session.rank()};
    return llm::train(session, run, std::atof(argv[2]));
  });
}
