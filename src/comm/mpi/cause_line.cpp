#include "src/comm/mpi/cause_line.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>
#include "src/base/rank_log.h"
#include "src/rt/watchdog.h"

namespace llm {
namespace {

/// Names the job to itself: mpirun and srun give every rank the same namespace. A process started
/// alone has its own.
std::string job_name() {
  for (const char* name : {"PMIX_NAMESPACE", "SLURM_JOB_ID"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return std::to_string(getpid());
}

/// Gone, or a zombie that its launcher has not looked after yet.
bool has_ended(int process) {
  return process_state(process) == "ended";
}

std::vector<int>& node_processes() {
  static std::vector<int> processes;
  return processes;
}

}  // namespace

std::string process_state(int process) {
  if (kill(process, 0) != 0) return errno == ESRCH ? "ended" : "";
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  const std::size_t name_end =
      stat.rfind(')');  // "PID (NAME) STATE ...", and NAME may hold anything
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return "";
  const char state = stat[name_end + 2];
  return state == 'Z' || state == 'X' ? "ended" : state == 'T' || state == 't' ? "stopped" : "";
}

void set_node_processes(std::vector<int> processes) {
  // Ranks in containers of their own do not see each other: then the claim alone decides.
  if (std::any_of(processes.begin(), processes.end(), has_ended)) processes.clear();
  node_processes() = std::move(processes);
}

bool claim_cause_line() {
  // The claim below ends with its owner, while this rank may still be on its way to its own end.
  if (std::any_of(node_processes().begin(), node_processes().end(), has_ended)) return false;
  // An abstract socket address has one owner at a time and ends with it. The descriptor stays open
  // until the process ends.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "llm-train-" + job_name();
  const std::size_t n = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), n);
  const int claim = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (claim < 0) return true;
  const auto n_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return bind(claim, reinterpret_cast<const sockaddr*>(&address), n_bytes) == 0 ||
         errno != EADDRINUSE;
}

void print_cause_line(int rank, std::string_view message) {
  while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
  const std::string line = fmt::format("error: rank {}: {}\n", rank, message);
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  // The disk of the log may be what failed.
  run_at_most(log_seconds, [line] { log_aside(line); });
}

}  // namespace llm
