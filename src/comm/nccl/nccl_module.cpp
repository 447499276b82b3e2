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

int begin(NcclCalls::Communicator& made, const NcclCalls::Id& id, int rank, int most_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = 1;
  config.maxCTAs = most_ctas;
  ncclUniqueId own;
  std::memcpy(&own, id.data(), sizeof(own));
  ncclComm_t communicator = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&communicator, 2, own, rank, &config);
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
         DeviceStream stream) {
  return ncclSend(from, static_cast<std::size_t>(n_bytes), ncclUint8, NcclCalls::receiver,
                  of(communicator), stream);
}

int receive(void* into, std::int64_t n_bytes, NcclCalls::Communicator communicator,
            DeviceStream stream) {
  return ncclRecv(into, static_cast<std::size_t>(n_bytes), ncclUint8, NcclCalls::sender,
                  of(communicator), stream);
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

const NcclCalls& nccl_calls() {
  static const NcclCalls calls = {make_id, begin,   state, send, receive,
                                  finalize, destroy, abort, text, last_error};
  return calls;
}

}  // namespace llm
