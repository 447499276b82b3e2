#pragma once
#include <cstdint>
#include <string>

#include "src/comm/mpi/mpi_session.h"

namespace llm {

/// MPI's own name and version, one line.
std::string mpi_version();
/// "funneled": what MPI_Init_thread gave.
std::string mpi_thread_level();

/// Between two ranks, by messages that MPI is asked for directly; the best of several, since other
/// work on the machine only ever adds time.
struct PairRates {
  double latency_seconds = 0;  ///< half a round trip of one byte
  double bytes_per_second = 0;
};
/// A call of all ranks: `a` and `b` measure, the others wait, all return the same.
PairRates measure_pair(const MpiSession& session, int a, int b);

/// Seconds of MPI's own all-reduce of f32, the best of several. A call of all ranks.
double measure_mpi_all_reduce(const MpiSession& session, std::int64_t n_elements);

}  // namespace llm
