#include <nccl.h>

#include <cstring>

#include "src/comm/nccl/nccl_calls.h"

namespace llm {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclCalls::Id));
static_assert(ncclSuccess == NcclCalls::success && ncclInProgress == NcclCalls::in_progress);

ncclComm_t of(NcclCalls::Communicator communicator) {
  return static_cast<ncclComm_t>(communicator);
}

int make_id(NcclCalls::Id& id) {
  ncclUniqueId made;
  const ncclResult_t result = ncclGetUniqueId(&made);
  std::memcpy(id.data(), &made, sizeof(made));
  return result;
}

int begin(NcclCalls::Communicator& made, const NcclCalls::Id& id, NcclCalls::Place place,
          int most_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = 1;
  config.maxCTAs = most_ctas;
  ncclUniqueId own;
  std::memcpy(&own, id.data(), sizeof(own));
  ncclComm_t communicator = nullptr;
  const ncclResult_t result =
      ncclCommInitRankConfig(&communicator, place.n_ranks, own, place.rank, &config);
  made = communicator;
  return result;
}

int state(NcclCalls::Communicator communicator, int& state) {
  ncclResult_t own = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(of(communicator), &own);
  state = own;
  return result;
}

int send(const void* from, std::int64_t n_bytes, NcclCalls::Communicator communicator,
         cudaStream_t stream) {
  return ncclSend(from, static_cast<std::size_t>(n_bytes), ncclUint8, NcclCalls::receiver,
                  of(communicator), stream);
}

int receive(void* into, std::int64_t n_bytes, NcclCalls::Communicator communicator,
            cudaStream_t stream) {
  return ncclRecv(into, static_cast<std::size_t>(n_bytes), ncclUint8, NcclCalls::sender,
                  of(communicator), stream);
}

int begin_group() {
  return ncclGroupStart();
}

int end_group() {
  return ncclGroupEnd();
}

int all_reduce(float* x, std::int64_t n, NcclCalls::Communicator communicator,
               cudaStream_t stream) {
  return ncclAllReduce(x, x, static_cast<std::size_t>(n), ncclFloat32, ncclSum, of(communicator),
                       stream);
}

int reduce_scatter(float* x, std::int64_t n_each, int rank, NcclCalls::Communicator communicator,
                   cudaStream_t stream) {
  return ncclReduceScatter(x, x + rank * n_each, static_cast<std::size_t>(n_each), ncclFloat32,
                           ncclSum, of(communicator), stream);
}

int reduce(float* x, std::int64_t n, int root, NcclCalls::Communicator communicator,
           cudaStream_t stream) {
  return ncclReduce(x, x, static_cast<std::size_t>(n), ncclFloat32, ncclSum, root, of(communicator),
                    stream);
}

int finalize(NcclCalls::Communicator communicator) {
  return ncclCommFinalize(of(communicator));
}

int destroy(NcclCalls::Communicator communicator) {
  return ncclCommDestroy(of(communicator));
}

int abort(NcclCalls::Communicator communicator) {
  return ncclCommAbort(of(communicator));
}

const char* text(int code) {
  return ncclGetErrorString(static_cast<ncclResult_t>(code));
}

const char* last_error(NcclCalls::Communicator communicator) {
  return ncclGetLastError(of(communicator));
}

}  // namespace
}  // namespace llm

/// What the programs look up in the module.
extern "C" const llm::NcclCalls* llm_nccl_calls() {
  static const llm::NcclCalls calls = {.make_id = llm::make_id,
                                       .begin = llm::begin,
                                       .state = llm::state,
                                       .send = llm::send,
                                       .receive = llm::receive,
                                       .begin_group = llm::begin_group,
                                       .end_group = llm::end_group,
                                       .all_reduce = llm::all_reduce,
                                       .reduce_scatter = llm::reduce_scatter,
                                       .reduce = llm::reduce,
                                       .finalize = llm::finalize,
                                       .destroy = llm::destroy,
                                       .abort = llm::abort,
                                       .text = llm::text,
                                       .last_error = llm::last_error};
  return &calls;
}
