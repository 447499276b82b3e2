#include "src/comm/mpi/cause_line.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fmt/format.h>

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

}  // namespace

bool claim_cause_line() {
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
}

}  // namespace llm
