#pragma once
#include <mpi.h>

#include <string>

#include "src/base/error.h"

namespace llm {

/// An MPI call failed. Often the echo of a peer's death: whoever reports it lets the cause go
/// first.
struct MpiError : CommError {
  explicit MpiError(const std::string& m) : CommError(m) {}
};

inline constexpr int no_peer = -1;

/// "MPI_ERR_TRUNCATE: message truncated".
std::string mpi_text(int code);

/// Throws MpiError naming the call, the peer and MPI's reason. `call` is the call's source text.
[[noreturn]] void throw_mpi_error(const char* call, int code, int peer);

}  // namespace llm

/// Every call of MPI goes through here. `peer` is a rank of the world, or no_peer.
#define CHECK_MPI(call, peer)                                                               \
  do {                                                                                      \
    const int check_mpi_code = (call);                                                      \
    if (check_mpi_code != MPI_SUCCESS) ::llm::throw_mpi_error(#call, check_mpi_code, peer); \
  } while (false)
