#pragma once
#include <mpi.h>

#include "src/comm/mpi/mpi_session.h"

namespace llm {

/// All ranks as this program numbers them: node by node, so not always as MPI_COMM_WORLD does.
struct MpiSession::Communicator {
  MPI_Comm all = MPI_COMM_NULL;
};

}  // namespace llm
