#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/comm/stall_diagnosis.h"
#include "src/comm/stall_table.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/watchdog.h"

namespace llm {

/// Finds out that a run stands still, and why. A run stands still when nothing has moved on any
/// rank for the timeout: a rank that waits asks the others now and then, so a slow rank that others
/// wait for is no stall as long as it moves. Then every rank writes its table to
/// folder/stall-rank-N.txt, and each tells what it makes of all tables, rank 0 first.
///
/// A rank whose loop does not turn for the timeout (in an op, in MPI, in a read) cannot answer: a
/// watchdog's thread, which touches nothing but a copy of the table that the loop leaves it about
/// once a second, writes its file. So nothing here depends on MPI going on.
class StallMonitor : public IdleWatch {
 public:
  struct Options {
    double timeout_seconds = 1800;
    /// How long ranks that do not answer are waited for once nothing has moved for the timeout.
    double answer_seconds = 2;
    std::string folder;  ///< of the files, made where it is missing; empty: no files
    KeyForms forms;
    std::function<std::string(int channel)> kind_of_channel;
    /// "stopped", "ended" or "" for a rank of this node; "" for any other.
    std::function<std::string(int rank)> process_state = [](int) { return std::string(); };
    std::function<void(const std::string& text)> print;
    /// Ends all ranks, does not return; called on the loop's thread or the watchdog's. `message` is
    /// one line.
    std::function<void(const std::string& message)> fail;
  };
  /// From here to close() the loop turns: its run() is under way, or follows soon.
  StallMonitor(Transport& transport, Options options);
  ~StallMonitor() override;

  /// Waits until all ranks have done their steps, so that one that is done too early is found out.
  Task<> end_together();
  /// The loop may stop turning, and its own timeout counts again.
  void close();

  void idle() override;
  void turned() override;

 private:
  enum class Message : std::uint8_t { ask = 1, part_of_table, stalled, said, done };
  enum class State : std::uint8_t { waiting, confirming, ending };

  void send(int peer, Message message, std::int64_t number, std::string_view payload);
  void handle(int peer, const ControlHeader& header, std::span<const std::byte> payload);
  void answer(int peer, std::int64_t number);
  void keep_part(int peer, std::int64_t number, std::string_view part, bool is_last);
  void ask();
  StallTable table_now() const;
  double seconds_since(std::int64_t at_ns) const;
  std::int64_t latest_ns() const;
  void confirm();
  bool all_silent_are_known();
  void say_own_table();
  [[noreturn]] void end();
  std::vector<RankReport> reports() const;
  void write_file(const StallTable& table, const std::string& diagnosis) const;
  std::string read_file_of(int rank) const;
  std::string path_of(int rank) const;
  void on_stuck(double seconds);

  Transport& transport_;
  Loop& loop_;
  const Options options_;
  const std::vector<int> asked_;  // ranks that this one asks
  Inbox<bool> done_;              // by rank
  State state_ = State::waiting;
  std::map<std::int64_t, std::int64_t> asked_at_ns_;  // by question
  std::int64_t number_ = 0;                           // of the last question
  std::int64_t next_ask_ns_ = 0;                      // idle clock, as all times here
  std::int64_t next_look_ns_ = 0;
  std::int64_t deadline_ns_ = 0;    // of answers, then of the end
  std::int64_t heard_progress_ns_;  // the latest that another rank told
  bool has_said_table_ = false;
  std::set<int> have_said_table_;      // others, of those that answered
  std::map<int, std::string> parts_;   // of answers on their way
  std::map<int, StallTable> answers_;  // to the last question
  std::int64_t last_copy_ns_ = 0;
  std::int64_t begin_seconds_;  // of files: older ones are another run's
  std::mutex copy_mutex_;
  StallTable copy_;  // for the watchdog
  std::optional<Watchdog> watchdog_;
};

/// The ranks that `rank` asks: all of them up to 64; of more, rank 0 asks all and the others ask
/// rank 0, which knows when something has moved last.
std::vector<int> ranks_to_ask(int rank, int n_ranks);

}  // namespace llm
