#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/stall_table.h"

namespace llm {

/// What is known of one rank of a run that stands still.
struct RankReport {
  int rank = 0;
  /// As it answered, or as it wrote it to its file; nothing: nobody hears from it.
  std::optional<StallTable> table = {};
  /// Of a rank on this node that does not answer: "stopped", "ended"; empty: it runs, or not known.
  std::string process_state = {};
  bool is_from_file = false;  ///< the table: the rank is there, and its messages are not
};

struct Diagnosis {
  enum class Kind : std::uint8_t {
    stuck,        ///< a loop does not turn: in an op, in MPI, in a read
    stopped,      ///< a process is stopped by a signal
    ended,        ///< a process has gone
    unreachable,  ///< ranks that run do not hear each other
    silent,       ///< nobody hears from a rank
    lost,         ///< a message was sent and has not arrived
    mis_tagged,   ///< a message was sent to another place than where it is waited for
    duplicated,   ///< more messages arrived than were sent
    finished,     ///< a rank is done with its steps and others wait for it
    cycle,        ///< ranks wait for each other
    local,        ///< ranks wait for one that waits for something of its own: its disk, its queue
    unclear,
  };
  Kind kind = Kind::unclear;
  std::vector<int> ranks;  ///< who is to be looked at, the most likely first
  std::string text;        ///< one line
};
std::string name_of(Diagnosis::Kind kind);

/// The kind of the waits of a rank that has done all its steps (StallMonitor::end_together).
inline constexpr const char* end_of_run = "end of the run";

/// From reports of all ranks that were asked, at a time when nothing has moved for longer than any
/// message travels.
Diagnosis diagnose(const std::vector<RankReport>& reports);

}  // namespace llm
