#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/base/error.h"

namespace llm {

/// This rank's clock against rank 0's.
struct ClockAlignment {
  std::int64_t origin_ns = 0;  ///< this rank's now_ns() at the time that all ranks call 0
  std::int64_t uncertainty_ns =
      0;  ///< half of the best round trip: the origin is off by at most that
};

/// MPI from start-up to its end, for the whole process; one at a time. Used on one thread
/// (MPI_THREAD_FUNNELED). Its calls block and belong to start-up and end; messages go by
/// MpiTransport. A process that leaves without finish() takes all ranks with it: MPI_Finalize on
/// the way out of an error would wait for peers forever.
///
/// Ranks are numbered node by node, whatever the launcher's order: neighbouring ranks share a node
/// where they can. Rank 0 is the launcher's rank 0.
class MpiSession {
 public:
  /// Starts MPI; makes waiting ranks yield where they outnumber cores. Throws ConfigError for a
  /// launch that cannot work, naming both numbers and the command that does.
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int n_ranks() const { return n_ranks_; }
  int local_rank() const { return local_rank_; }                      ///< place on this node
  int ranks_per_node() const { return ranks_per_node_; }              ///< on this node
  const std::vector<int>& node_of_ranks() const { return node_of_; }  ///< 0, 0, 1, 1: ascending
  int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  int n_nodes() const { return node_of_.back() + 1; }
  bool is_on_this_node(int rank) const { return node_of(rank) == node_of(rank_); }
  /// "stopped" by a signal, "ended", or "" for any other process and for a rank of another node.
  std::string process_state(int rank) const;

  struct Communicator;  // keeps mpi.h out of this header
  const Communicator& communicator() const { return *communicator_; }

  /// Every rank returns rank 0's text.
  std::string broadcast(std::string text) const;
  /// Rank 0 returns all ranks' texts in rank order, the others nothing.
  std::vector<std::string> gather(const std::string& text) const;
  void barrier() const;
  /// Rank 0's present becomes the origin of all ranks' clocks. Takes about 20 round trips a rank.
  ClockAlignment align_clocks() const;

  /// Success only, on every rank: waits for all and shuts MPI down. SIGTERM and SIGUSR1 are ignored
  /// from here on.
  void finish();
  /// Ends every rank with the message as the cause line; of several ranks of a node that fail
  /// together one prints it. Callable from any thread.
  [[noreturn]] void fail(ExitCode code, const std::string& message) const;
  /// Ends every rank with `code` (1 .. 255), this one in any case. Callable from any thread.
  [[noreturn]] void abort(int code) const;
  /// abort() on this session's thread. A process that nobody launched has no peers to take along or
  /// to wait for: it leaves nothing behind and adds none of MPI's own text.
  [[noreturn]] void leave(int code) const;
  /// Ends every rank of a run that stands still: the cause line from one rank a node, after the
  /// others had the time to tell what they wait for. Callable from any thread; returns to nobody,
  /// so that nothing is waited for on the way out.
  [[noreturn]] void end_stalled(const std::string& message) const;

 private:
  void number_ranks_by_node();
  void meet_node_processes();

  int rank_ = 0;
  int n_ranks_ = 1;
  int local_rank_ = 0;
  int ranks_per_node_ = 1;
  std::vector<int> node_of_ = {0};  // by rank
  std::vector<int> processes_;      // by rank, on whichever node
  bool launched_ = false;           // by mpirun or srun
  std::unique_ptr<Communicator> communicator_;
};

/// Main's body on every rank. Returns what `body` returns, after finish(). An exception prints one
/// line "error: rank R: message" and ends all ranks with the Error's exit code (70 for any other).
/// Of several ranks that fail together one a node prints it: the others wait for their end.
int run_and_report(MpiSession& session, const std::function<int()>& body);

}  // namespace llm
