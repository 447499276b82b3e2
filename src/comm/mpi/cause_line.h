#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llm {

/// The processes of this job's ranks on this node. From here on a rank that finds one of them ended
/// knows that the cause was another's: it has been said, by that rank or by the launcher.
void set_node_processes(std::vector<int> processes);

/// "ended" of a process that is gone, or a zombie; "stopped" by a signal; "" of any other.
std::string process_state(int process);

/// True for the first caller among this job's ranks on this node. Local and without files: nothing
/// is left behind however the ranks end.
bool claim_cause_line();

/// What the disk of a log has for a line: it may be what failed.
inline constexpr double log_seconds = 0.5;

/// "error: rank R: message" on stderr, in one write.
void print_cause_line(int rank, std::string_view message);

}  // namespace llm
