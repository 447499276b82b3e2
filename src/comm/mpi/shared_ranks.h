#pragma once
#include "src/comm/mpi/mpi_session.h"

namespace llm {

/// Whether all ranks are on one machine and may map each other's memory, found out by doing it. A
/// call of all ranks, which all return the same.
bool ranks_share_memory(const MpiSession& session);

}  // namespace llm
