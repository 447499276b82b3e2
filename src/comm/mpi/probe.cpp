#include "src/comm/mpi/probe.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <vector>

#include "src/comm/mpi/check_mpi.h"
#include "src/comm/mpi/communicator.h"

namespace llm {
namespace {

constexpr int probe_tag = 2;
constexpr int n_small_round_trips = 200;
constexpr int n_large_round_trips = 5;
constexpr int large_bytes = 4 << 20;
constexpr int n_all_reduces = 5;

/// The best of `n` round trips of so many bytes, on the rank that sends first.
double best_round_trip(MPI_Comm comm, bool sends_first, int peer, std::vector<std::byte>& buffer,
                       int n_bytes, int n) {
  double best = 1e30;
  for (int i = 0; i < n; ++i) {
    const double begin = MPI_Wtime();
    if (sends_first) {
      CHECK_MPI(MPI_Send(buffer.data(), n_bytes, MPI_BYTE, peer, probe_tag, comm), peer);
    }
    CHECK_MPI(MPI_Recv(buffer.data(), n_bytes, MPI_BYTE, peer, probe_tag, comm, MPI_STATUS_IGNORE),
              peer);
    if (!sends_first) {
      CHECK_MPI(MPI_Send(buffer.data(), n_bytes, MPI_BYTE, peer, probe_tag, comm), peer);
    }
    best = std::min(best, MPI_Wtime() - begin);
  }
  return best;
}

}  // namespace

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  CHECK_MPI(MPI_Get_library_version(text.data(), &length), no_peer);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

std::string mpi_thread_level() {
  int level = 0;
  CHECK_MPI(MPI_Query_thread(&level), no_peer);
  return level == MPI_THREAD_MULTIPLE     ? "multiple"
         : level == MPI_THREAD_SERIALIZED ? "serialized"
         : level == MPI_THREAD_FUNNELED   ? "funneled"
                                          : "single";
}

PairRates measure_pair(const MpiSession& session, int a, int b) {
  MPI_Comm const comm = session.communicator().all;
  std::array<double, 2> rates{};
  if (session.rank() == a || session.rank() == b) {
    const bool is_first = session.rank() == a;
    std::vector<std::byte> buffer(large_bytes);
    const int peer = is_first ? b : a;
    rates[0] = best_round_trip(comm, is_first, peer, buffer, 1, n_small_round_trips) / 2;
    rates[1] = 2.0 * large_bytes /
               best_round_trip(comm, is_first, peer, buffer, large_bytes, n_large_round_trips);
  }
  CHECK_MPI(MPI_Bcast(rates.data(), 2, MPI_DOUBLE, a, comm), a);
  return {rates[0], rates[1]};
}

double measure_mpi_all_reduce(const MpiSession& session, std::int64_t n_elements) {
  MPI_Comm const comm = session.communicator().all;
  std::vector<float> values(static_cast<std::size_t>(n_elements), 1.0f);
  double best = 1e30;
  for (int i = 0; i < n_all_reduces; ++i) {
    session.barrier();
    const double begin = MPI_Wtime();
    CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(n_elements), MPI_FLOAT,
                            MPI_SUM, comm),
              no_peer);
    best = std::min(best, MPI_Wtime() - begin);
  }
  return best;
}

}  // namespace llm
