#include "src/comm/mpi/mpi_session.h"

#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/rank_log.h"
#include "src/comm/mpi/cause_line.h"
#include "src/comm/mpi/check_mpi.h"
#include "src/comm/mpi/communicator.h"
#include "src/comm/mpi/launch.h"
#include "src/rt/clock.h"
#include "src/rt/watchdog.h"

namespace llm {
namespace {

constexpr int n_clock_round_trips = 20;
constexpr int clock_tag = 1;

int n_cores_here() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int mpi_length(std::size_t n_bytes) {
  CHECK_CONTRACT(n_bytes <= 1U << 30, "texts exchanged at start-up are small");
  return static_cast<int>(n_bytes);
}

// A failed call of MPI is often the echo of a peer's end: mpirun needs less than this to end all.
constexpr unsigned echo_ms = 1000;
// Every stalled rank prints its own table before the first one ends them all.
constexpr unsigned tables_ms = 500;
// Who is not the first waits for the first one's MPI_Abort; after that it ends the job itself.
constexpr unsigned second_ms = 3000;

// MPI_Abort asks the launcher, which may be behind a link that is down.
constexpr unsigned abort_seconds = 2;
volatile sig_atomic_t abort_code = static_cast<int>(ExitCode::internal);

void pause_ms(unsigned n) {
  usleep(n * 1000);
}

/// Of the one session, for what ends the process without it.
std::atomic<int> rank_here = 0;

/// Takes the other ranks along: under srun they would wait forever for one that ends on its own.
[[noreturn]] void abort_with_line(std::string_view message) {
  if (claim_cause_line()) print_cause_line(rank_here, message);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::internal));
  _exit(static_cast<int>(ExitCode::internal));
}

/// Exit without finish() or abort(): an std::exit somewhere, a forgotten path.
void abort_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) abort_with_line("the program ended without shutting MPI down");
}

/// An exception that nobody catches: of another thread, or out of a noexcept function.
void abort_at_terminate() {
  std::string message = "terminated without an exception";
  try {
    if (const std::exception_ptr failure = std::current_exception())
      std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an exception without a message";
  }
  abort_with_line(message);
}

[[noreturn]] void end_all(const MpiSession& session, ExitCode code, const std::string& message,
                          bool is_stall) {
  if (claim_cause_line()) {
    print_cause_line(session.rank(), message);
    if (is_stall && session.n_ranks() > 1) pause_ms(tables_ms);
  } else {
    if (is_stall) std::fputs(fmt::format("rank {}: {}\n", session.rank(), message).c_str(), stderr);
    std::fflush(nullptr);
    pause_ms(second_ms);
  }
  session.leave(static_cast<int>(code));
}

}  // namespace

MpiSession::MpiSession() {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  check_slurm_plugin(environment);
  const Launch launch = read_launch(environment, n_cores_here());
  launched_ = !launch.launcher.empty();
  // Without it a waiting rank holds its core for a whole time slice: hops of 2 ms instead of 2 us.
  // A setting of the user's stays.
  if (is_oversubscribed(launch)) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int provided = 0;
  CHECK_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), no_peer);
  CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), no_peer);
  CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), no_peer);
  CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), no_peer);
  CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &n_ranks_), no_peer);
  if (provided < MPI_THREAD_FUNNELED) {
    throw ConfigError(
        fmt::format("this MPI gives thread level {}, {} (funneled) is needed; use an "
                    "MPI built with threads",
                    provided, int{MPI_THREAD_FUNNELED}));
  }
  check_world_size(launch, n_ranks_);
  number_ranks_by_node();
  meet_node_processes();
  std::atexit(abort_at_exit);
  std::set_terminate(abort_at_terminate);
}

MpiSession::~MpiSession() = default;

void MpiSession::number_ranks_by_node() {
  MPI_Comm node = MPI_COMM_NULL;
  CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
            no_peer);
  CHECK_MPI(MPI_Comm_rank(node, &local_rank_), no_peer);
  CHECK_MPI(MPI_Comm_size(node, &ranks_per_node_), no_peer);
  int first_on_node = rank_;
  CHECK_MPI(MPI_Bcast(&first_on_node, 1, MPI_INT, 0, node), no_peer);
  CHECK_MPI(MPI_Comm_free(&node), no_peer);
  std::vector<int> node_of(static_cast<std::size_t>(n_ranks_));
  CHECK_MPI(MPI_Allgather(&first_on_node, 1, MPI_INT, node_of.data(), 1, MPI_INT, MPI_COMM_WORLD),
            no_peer);
  NodeOrder order = order_by_node(node_of);
  rank_ = order.rank_of[static_cast<std::size_t>(rank_)];
  rank_here = rank_;
  node_of_ = std::move(order.node_of);
  communicator_ = std::make_unique<Communicator>();
  CHECK_MPI(MPI_Comm_split(MPI_COMM_WORLD, 0, rank_, &communicator_->all), no_peer);
  CHECK_MPI(MPI_Comm_set_errhandler(communicator_->all, MPI_ERRORS_RETURN), no_peer);
}

/// So that a rank can tell whether one that shares its node has ended before it.
void MpiSession::meet_node_processes() {
  processes_.resize(static_cast<std::size_t>(n_ranks_));
  const int self = getpid();
  CHECK_MPI(MPI_Allgather(&self, 1, MPI_INT, processes_.data(), 1, MPI_INT, communicator_->all),
            no_peer);
  std::vector<int> here;
  for (int rank = 0; rank < n_ranks_; ++rank) {
    if (is_on_this_node(rank)) here.push_back(processes_[static_cast<std::size_t>(rank)]);
  }
  set_node_processes(std::move(here));
}

std::string MpiSession::broadcast(std::string text) const {
  int length = mpi_length(text.size());
  CHECK_MPI(MPI_Bcast(&length, 1, MPI_INT, 0, communicator_->all), 0);
  text.resize(static_cast<std::size_t>(length));
  CHECK_MPI(MPI_Bcast(text.data(), length, MPI_BYTE, 0, communicator_->all), 0);
  return text;
}

std::vector<std::string> MpiSession::gather(const std::string& text) const {
  const int length = mpi_length(text.size());
  const auto n = static_cast<std::size_t>(rank_ == 0 ? n_ranks_ : 0);
  std::vector<int> lengths(n);
  CHECK_MPI(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, communicator_->all), 0);
  std::vector<int> begins;
  std::size_t total = 0;
  for (const int one : lengths) {
    begins.push_back(mpi_length(total));
    total += static_cast<std::size_t>(one);
  }
  std::string all(total, '\0');
  CHECK_MPI(MPI_Gatherv(text.data(), length, MPI_BYTE, all.data(), lengths.data(), begins.data(),
                        MPI_BYTE, 0, communicator_->all),
            0);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < n; ++r) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(lengths[r])));
  }
  return texts;
}

void MpiSession::barrier() const {
  CHECK_MPI(MPI_Barrier(communicator_->all), no_peer);
}

ClockAlignment MpiSession::align_clocks() const {
  std::int64_t origin_ns = now_ns();
  CHECK_MPI(MPI_Bcast(&origin_ns, 1, MPI_INT64_T, 0, communicator_->all), 0);
  ClockAlignment best{origin_ns, 0};
  for (int r = 1; r < n_ranks_; ++r) {
    for (int n = 0; n < n_clock_round_trips && (rank_ == 0 || rank_ == r); ++n) {
      std::int64_t there_ns = 0;
      if (rank_ == 0) {
        CHECK_MPI(MPI_Recv(&there_ns, 1, MPI_INT64_T, r, clock_tag, communicator_->all,
                           MPI_STATUS_IGNORE),
                  r);
        there_ns = now_ns();
        CHECK_MPI(MPI_Send(&there_ns, 1, MPI_INT64_T, r, clock_tag, communicator_->all), r);
        continue;
      }
      const std::int64_t begin_ns = now_ns();
      CHECK_MPI(MPI_Send(&begin_ns, 1, MPI_INT64_T, 0, clock_tag, communicator_->all), 0);
      CHECK_MPI(
          MPI_Recv(&there_ns, 1, MPI_INT64_T, 0, clock_tag, communicator_->all, MPI_STATUS_IGNORE),
          0);
      const std::int64_t end_ns = now_ns();
      const std::int64_t uncertainty_ns = (end_ns - begin_ns + 1) / 2;
      // The answer was written, as far as is known, in the middle of the round trip.
      if (n == 0 || uncertainty_ns < best.uncertainty_ns) {
        best = {origin_ns + begin_ns + (end_ns - begin_ns) / 2 - there_ns, uncertainty_ns};
      }
    }
  }
  return best;
}

void MpiSession::finish() {
  // The first rank that leaves with another code than 0 makes `srun -K` end the rest, whose code
  // would be the signal's: everything is done here, so they leave with their own.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGUSR1, SIG_IGN);
  barrier();
  CHECK_MPI(MPI_Finalize(), no_peer);
}

void MpiSession::fail(ExitCode code, const std::string& message) const {
  if (claim_cause_line()) {
    print_cause_line(rank_, message);
  } else {
    pause_ms(second_ms);
  }
  // Not leave(): the session's own thread may be in a call that MPI_Finalize would pull away.
  abort(static_cast<int>(code));
}

void MpiSession::abort(int code) const {
  CHECK_CONTRACT(code > 0 && code < 256, "mpirun takes other codes for success");
  std::fflush(nullptr);
  abort_code = code;
  signal(SIGALRM, [](int) { _exit(abort_code); });
  alarm(abort_seconds);
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

std::string MpiSession::process_state(int rank) const {
  if (!is_on_this_node(rank)) return "";
  return llm::process_state(processes_[static_cast<std::size_t>(rank)]);
}

void MpiSession::end_stalled(const std::string& message) const {
  constexpr int code = static_cast<int>(ExitCode::internal);
  if (claim_cause_line()) {
    print_cause_line(rank_, message);
    if (n_ranks_ > 1) pause_ms(tables_ms);
  } else {
    const std::string line = fmt::format("rank {}: {}\n", rank_, message);
    std::fputs(line.c_str(), stderr);
    std::fflush(nullptr);
    run_at_most(log_seconds, [line] { log_aside(line); });
    pause_ms(second_ms);
  }
  // MPI's calls but for MPI_Abort belong to the first thread.
  if (getpid() == gettid()) leave(code);
  abort(code);
}

void MpiSession::leave(int code) const {
  if (launched_) abort(code);
  std::fflush(nullptr);
  MPI_Finalize();
  _exit(code);
}

int run_and_report(MpiSession& session, const std::function<int()>& body) {
  try {
    const int code = body();
    session.finish();
    return code;
  } catch (const MpiError& error) {
    pause_ms(echo_ms);
    end_all(session, error.code(), error.what(), false);
  } catch (const StallError& error) {
    end_all(session, error.code(), error.what(), true);
  } catch (const Error& error) {
    end_all(session, error.code(), error.what(), false);
  } catch (const std::exception& error) {
    end_all(session, ExitCode::internal, error.what(), false);
  } catch (...) {
    end_all(session, ExitCode::internal, "an exception without a message", false);
  }
}

}  // namespace llm
