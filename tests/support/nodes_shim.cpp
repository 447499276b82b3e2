// Preloaded under MPI programs of the tests: ranks stand on LLM_TEST_NODES nodes, dealt out in turn
// as srun's cyclic distribution and mpirun's --map-by node do it, though all of them are on this
// machine.
#include <mpi.h>

#include <cstdlib>

extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info,
                                   MPI_Comm* part) {
  const char* const n_nodes = std::getenv("LLM_TEST_NODES");
  if (n_nodes == nullptr || type != MPI_COMM_TYPE_SHARED) {
    return PMPI_Comm_split_type(comm, type, key, info, part);
  }
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return PMPI_Comm_split(comm, rank % std::atoi(n_nodes), key, part);
}
