// Preloaded under MPI programs of the tests: every send is synchronous, so that nothing can rely on
// MPI's buffers; tags end at 32767, the least that MPI promises; and one thread alone may call MPI.
// A break of a rule is printed and ends the rank.
#include <mpi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int tag_limit = 32767;
std::atomic<long> caller{0};

void require(bool holds, const char* call, const char* rule) {
  if (holds) return;
  std::fprintf(stderr, "error: %s: %s\n", call, rule);
  std::abort();
}

void check(const char* call, int tag = 0) {
  const long thread = syscall(SYS_gettid);
  long first = 0;
  caller.compare_exchange_strong(first, thread);
  require(first == 0 || first == thread, call, "a second thread calls MPI");
  require(tag <= tag_limit, call, "a tag is above 32767");
}

}  // namespace

extern "C" {

int MPI_Send(const void* bytes, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
  check("MPI_Send", tag);
  return PMPI_Ssend(bytes, n, type, peer, tag, comm);
}

int MPI_Isend(const void* bytes, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request* request) {
  check("MPI_Isend", tag);
  return PMPI_Issend(bytes, n, type, peer, tag, comm, request);
}

int MPI_Irecv(void* bytes, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request* request) {
  check("MPI_Irecv", tag);
  return PMPI_Irecv(bytes, n, type, peer, tag, comm, request);
}

int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  check("MPI_Test");
  return PMPI_Test(request, flag, status);
}

int MPI_Testsome(int n, MPI_Request* requests, int* n_done, int* indices, MPI_Status* statuses) {
  check("MPI_Testsome");
  return PMPI_Testsome(n, requests, n_done, indices, statuses);
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void* value, int* is_set) {
  check("MPI_Comm_get_attr");
  if (key != MPI_TAG_UB) return PMPI_Comm_get_attr(comm, key, value, is_set);
  int* const limit = &tag_limit;
  std::memcpy(value, &limit, sizeof(limit));
  *is_set = 1;
  return MPI_SUCCESS;
}
}
