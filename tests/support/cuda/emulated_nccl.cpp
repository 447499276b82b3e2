#include "tests/support/cuda/emulated_nccl.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda/device.h"
#include "tests/support/cuda/error.h"

namespace llm::emulator {
namespace {

/// The calls of one communicator in a group: one op of a stream.
struct GroupOp {
  bool is_first = false;  ///< of its stream
  bool is_aborted = false;
};

/// One end of a message.
struct End {
  void* data = nullptr;
  std::size_t count = 0;
  ncclDataType_t dtype = ncclInt8;
  std::shared_ptr<GroupOp> op;  ///< nullptr: not called yet
};

struct Message {
  End send;
  End receive;
  bool is_moved = false;
};

enum class Kind : std::uint8_t { send, receive, all_reduce, reduce_scatter, reduce };

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::send:
      return "ncclSend";
    case Kind::receive:
      return "ncclRecv";
    case Kind::all_reduce:
      return "ncclAllReduce";
    case Kind::reduce_scatter:
      return "ncclReduceScatter";
    case Kind::reduce:
      return "ncclReduce";
  }
  return "";
}

/// One rank's part in a sum.
struct Part {
  const float* from = nullptr;
  float* into = nullptr;
  std::shared_ptr<GroupOp> op;
};

/// A sum over all ranks of a communicator.
struct Sum {
  Kind kind;
  std::size_t count;
  int root;
  int first_rank;  ///< that has called it
  std::map<int, Part> parts;
  bool is_made = false;
};

std::size_t size_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
      return 8;
  }
  throw EmulatorError("a dtype that NCCL does not know");
}

/// Messages of one direction between two ranks of a communicator.
struct Lane {
  std::vector<std::shared_ptr<Message>> messages;
  std::size_t n_sends = 0;
  std::size_t n_receives = 0;
  bool is_connected = false;
};

/// What the ranks of a communicator share.
struct Clique {
  std::set<int> begun;
  std::map<std::pair<int, int>, Lane> lanes;  // from, to
  std::vector<std::shared_ptr<Sum>> sums;
  std::map<int, std::size_t> n_sums;  // called, by rank
  bool sums_are_connected = false;
};

struct Call {
  Kind kind;
  const void* from;
  void* into;
  std::size_t count;
  ncclDataType_t dtype;
  int peer;  ///< or root
  ncclComm_t comm;
  cudaStream_t stream;
  bool is_send() const { return kind == Kind::send; }
};

/// A group on its way into its stream.
struct Group {
  std::shared_ptr<GroupOp> op = std::make_shared<GroupOp>();
  std::vector<std::shared_ptr<Message>> messages;
  std::vector<Lane*> lanes;
  std::vector<std::shared_ptr<Sum>> sums;
  std::vector<Access> accesses;
  cudaStream_t stream = nullptr;
  std::string name;
};

}  // namespace
}  // namespace llm::emulator

using namespace llm::emulator;

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int n_ranks = 0;
  int rank = 0;
  bool is_ready = false;
  bool is_finalized = false;
  int n_polls = 0;  ///< left until what is in progress is done
  std::unique_ptr<Group> launch;
  std::vector<std::shared_ptr<Message>> messages;
  std::vector<std::shared_ptr<Sum>> sums;
  std::vector<std::shared_ptr<GroupOp>> ops;
};

namespace llm::emulator {
namespace {

struct Nccl {
  std::map<ncclComm_t, std::unique_ptr<ncclComm>> comms;
  std::map<int, std::shared_ptr<Clique>> cliques;  // by the number in a unique id
  int n_ids = 0;
  std::int64_t n_sums = 0;
  int group_depth = 0;
  std::vector<Call> calls;
  std::mt19937_64 random;
  ncclResult_t error = ncclSuccess;

  int some_polls() { return static_cast<int>(random() % 3); }
  ncclComm& at(ncclComm_t comm) {
    const auto found = comms.find(comm);
    if (found == comms.end()) {
      throw EmulatorError("a communicator that was destroyed or aborted is used");
    }
    return *found->second;
  }
};

Nccl& nccl() {
  static Nccl one;
  return one;
}

void check_match(const Message& message, const Call& call, int rank) {
  const End& other = call.is_send() ? message.receive : message.send;
  if (other.op == nullptr || (other.count == call.count && other.dtype == call.dtype)) return;
  const auto text = [](std::size_t count, ncclDataType_t dtype) {
    return std::to_string(count) + " elements of " + std::to_string(size_of(dtype)) +
           " bytes, NCCL's dtype " + std::to_string(dtype);
  };
  throw EmulatorError(std::string(name_of(call.kind)) + " of rank " + std::to_string(rank) +
                      " has " + text(call.count, call.dtype) + "; its partner has " +
                      text(other.count, other.dtype));
}

void add_name(Group& launch, const std::string& name) {
  launch.name += (launch.name.empty() ? "" : ", ") + name;
}

std::string text_of(Kind kind, std::size_t count, int root) {
  return std::string(name_of(kind)) + " of " + std::to_string(count) + " elements" +
         (kind == Kind::reduce ? " to rank " + std::to_string(root) : "");
}

/// In place, or apart.
void check_memory(const Call& call, const ncclComm& comm) {
  const auto n_ranks = static_cast<std::size_t>(comm.n_ranks);
  const auto rank = static_cast<std::size_t>(comm.rank);
  const bool scatters = call.kind == Kind::reduce_scatter;
  const auto* const from = static_cast<const float*>(call.from);
  const auto* const into = static_cast<const float*>(call.into);
  const bool is_in_place = into == from + (scatters ? rank * call.count : 0);
  const bool is_apart =
      into + call.count <= from || from + (scatters ? n_ranks : 1) * call.count <= into;
  if (!is_in_place && !is_apart) {
    throw EmulatorError(text_of(call.kind, call.count, call.peer) + " of rank " +
                        std::to_string(comm.rank) +
                        " has its result in its operand, and not in place");
  }
}

/// Enters a call into the communicator's sums.
void match_sum(Group& launch, const Call& call) {
  ncclComm& comm = *call.comm;
  if (call.dtype != ncclFloat32) throw EmulatorError("sums are emulated of f32 alone");
  check_memory(call, comm);
  const std::size_t place = comm.clique->n_sums[comm.rank]++;
  std::vector<std::shared_ptr<Sum>>& all = comm.clique->sums;
  if (place == all.size()) {
    all.push_back(std::make_shared<Sum>(Sum{call.kind, call.count, call.peer, comm.rank, {}}));
  }
  const std::shared_ptr<Sum>& sum = all[place];
  const std::string own = text_of(call.kind, call.count, call.peer);
  const std::string other = text_of(sum->kind, sum->count, sum->root);
  if (own != other) {
    throw EmulatorError("sum " + std::to_string(place) + " of a communicator is " + own +
                        " on rank " + std::to_string(comm.rank) + " and " + other + " on rank " +
                        std::to_string(sum->first_rank));
  }
  const bool keeps = call.kind != Kind::reduce || call.peer == comm.rank;
  sum->parts[comm.rank] = {static_cast<const float*>(call.from), static_cast<float*>(call.into),
                           launch.op};
  launch.sums.push_back(sum);
  launch.accesses.push_back({call.from, false});
  if (keeps) launch.accesses.push_back({call.into, true});
  add_name(launch, own + " of rank " + std::to_string(comm.rank));
}

/// The sum of all ranks' element, along a ring that ends with `last`.
float ring_sum(const Sum& sum, std::size_t element, int last) {
  const int n_ranks = static_cast<int>(sum.parts.size());
  float total = sum.parts.at((last + 1) % n_ranks).from[element];
  for (int i = 2; i <= n_ranks; ++i) total += sum.parts.at((last + i) % n_ranks).from[element];
  return total;
}

void make(Sum& sum) {
  const std::size_t n_ranks = sum.parts.size();
  const bool scatters = sum.kind == Kind::reduce_scatter;
  const std::size_t n = scatters ? n_ranks * sum.count : sum.count;
  const std::size_t n_each = (n + n_ranks - 1) / n_ranks;
  std::vector<float> totals(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int last = sum.kind == Kind::reduce ? sum.root : static_cast<int>(i / n_each);
    totals[i] = ring_sum(sum, i, last);
  }
  for (auto& [rank, part] : sum.parts) {
    if (sum.kind == Kind::reduce && rank != sum.root) continue;
    const std::size_t begin = scatters ? static_cast<std::size_t>(rank) * sum.count : 0;
    std::copy_n(totals.begin() + static_cast<std::ptrdiff_t>(begin), sum.count, part.into);
  }
  sum.is_made = true;
  ++nccl().n_sums;
}

bool can_make(const Sum& sum, int n_ranks) {
  return static_cast<int>(sum.parts.size()) == n_ranks &&
         std::all_of(sum.parts.begin(), sum.parts.end(), [](const auto& one) {
           return one.second.op->is_first && !one.second.op->is_aborted;
         });
}

/// Enters a call into its lane.
void match_message(Group& launch, const Call& call) {
  ncclComm& comm = *call.comm;
  const int from = call.is_send() ? comm.rank : call.peer;
  const int to = call.is_send() ? call.peer : comm.rank;
  Lane& lane = comm.clique->lanes[{from, to}];
  const std::size_t place = call.is_send() ? lane.n_sends++ : lane.n_receives++;
  if (place == lane.messages.size()) lane.messages.push_back(std::make_shared<Message>());
  const std::shared_ptr<Message>& message = lane.messages[place];
  check_match(*message, call, comm.rank);
  End& end = call.is_send() ? message->send : message->receive;
  end = {call.into, call.count, call.dtype, launch.op};
  launch.messages.push_back(message);
  launch.lanes.push_back(&lane);
  launch.accesses.push_back({call.into, !call.is_send()});
  add_name(launch, std::string(name_of(call.kind)) + " of rank " + std::to_string(comm.rank) +
                       (call.is_send() ? " to rank " : " from rank ") + std::to_string(call.peer));
}

/// Of a group's op, at the head of its stream.
Step step(GroupOp& op, const std::vector<std::shared_ptr<Message>>& messages,
          const std::vector<std::shared_ptr<Sum>>& sums, int n_ranks) {
  if (op.is_aborted) return Step::done;
  if (!op.is_first) {
    op.is_first = true;
    return Step::moved;
  }
  bool all_moved = true;
  for (const std::shared_ptr<Message>& message : messages) {
    if (message->is_moved) continue;
    const End& send = message->send;
    const End& receive = message->receive;
    const bool both_there = send.op != nullptr && receive.op != nullptr && send.op->is_first &&
                            receive.op->is_first && !send.op->is_aborted && !receive.op->is_aborted;
    if (both_there) {
      std::memcpy(receive.data, send.data, send.count * size_of(send.dtype));
      message->is_moved = true;
      return Step::moved;
    }
    all_moved = false;
  }
  for (const std::shared_ptr<Sum>& sum : sums) {
    if (sum->is_made) continue;
    if (can_make(*sum, n_ranks)) {
      make(*sum);
      return Step::moved;
    }
    all_moved = false;
  }
  return all_moved ? Step::done : Step::blocked;
}

/// Connections that a launch needs are made when both ends, or all ranks, have called.
bool can_connect(const Group& launch, const ncclComm& comm) {
  for (const std::shared_ptr<Sum>& sum : launch.sums) {
    const bool all_called = static_cast<int>(sum->parts.size()) == comm.n_ranks;
    comm.clique->sums_are_connected = comm.clique->sums_are_connected || all_called;
    if (!comm.clique->sums_are_connected) return false;
  }
  for (std::size_t i = 0; i < launch.messages.size(); ++i) {
    const Message& message = *launch.messages[i];
    const bool both_called = message.send.op != nullptr && message.receive.op != nullptr;
    launch.lanes[i]->is_connected = launch.lanes[i]->is_connected || both_called;
    if (!launch.lanes[i]->is_connected) return false;
  }
  return true;
}

bool all_moved(const ncclComm& comm) {
  return std::all_of(comm.messages.begin(), comm.messages.end(),
                     [](const auto& message) { return message->is_moved; }) &&
         std::all_of(comm.sums.begin(), comm.sums.end(),
                     [](const auto& sum) { return sum->is_made; });
}

bool is_in_progress(ncclComm& comm) {
  if (!comm.is_ready) {
    if (static_cast<int>(comm.clique->begun.size()) < comm.n_ranks || comm.n_polls-- > 0) {
      return true;
    }
    comm.is_ready = true;
  }
  if (comm.launch == nullptr) return false;
  if (!can_connect(*comm.launch, comm) || comm.n_polls-- > 0) return true;
  const std::unique_ptr<Group> launch = std::move(comm.launch);
  comm.messages.insert(comm.messages.end(), launch->messages.begin(), launch->messages.end());
  comm.sums.insert(comm.sums.end(), launch->sums.begin(), launch->sums.end());
  current_device()->put(number_of(launch->stream), launch->name.c_str(), launch->accesses,
                        [op = launch->op, messages = launch->messages, sums = launch->sums,
                         n = comm.n_ranks] { return step(*op, messages, sums, n); });
  return false;
}

/// All calls of a group on one communicator.
ncclResult_t begin_launch(ncclComm& comm, const std::vector<Call>& calls) {
  comm.launch = std::make_unique<Group>();
  comm.launch->stream = calls.front().stream;
  for (const Call& call : calls) {
    if (call.stream != comm.launch->stream) {
      throw EmulatorError("calls of a group on one communicator have different streams");
    }
    const bool is_message = call.kind == Kind::send || call.kind == Kind::receive;
    is_message ? match_message(*comm.launch, call) : match_sum(*comm.launch, call);
  }
  comm.ops.push_back(comm.launch->op);
  comm.n_polls = nccl().some_polls();
  return is_in_progress(comm) ? ncclInProgress : ncclSuccess;
}

ncclResult_t call(const Call& one) {
  Nccl& all = nccl();
  const ncclComm& comm = all.at(one.comm);
  if (comm.is_finalized) throw EmulatorError("a communicator is used that was finalized");
  if (!comm.is_ready || comm.launch != nullptr) {
    throw EmulatorError("a communicator is used while it is in progress; poll its state");
  }
  if (all.error != ncclSuccess) throw EmulatorError("a communicator is used that is in error");
  if (one.peer < 0 || one.peer >= comm.n_ranks) return ncclInvalidArgument;
  all.calls.push_back(one);
  return all.group_depth > 0 ? ncclSuccess : ncclGroupEnd();
}

}  // namespace

void seed_nccl(std::uint64_t seed) {
  nccl().random.seed(seed);
}

int n_communicators() {
  return static_cast<int>(nccl().comms.size());
}

std::int64_t n_sums() {
  return nccl().n_sums;
}

void fail_nccl(ncclResult_t error) {
  nccl().error = error;
}

}  // namespace llm::emulator

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const int number = ++nccl().n_ids;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, &number, sizeof(number));
  nccl().cliques[number] = std::make_shared<Clique>();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  int number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  const auto found = nccl().cliques.find(number);
  if (found == nccl().cliques.end() || rank < 0 || rank >= n_ranks) return ncclInvalidArgument;
  if (config->blocking != 0) {
    throw EmulatorError("a communicator that blocks would wait for ranks of the same thread");
  }
  if (!found->second->begun.insert(rank).second) {
    throw EmulatorError("two ranks of a communicator have the same number");
  }
  auto made = std::make_unique<ncclComm>();
  made->clique = found->second;
  made->n_ranks = n_ranks;
  made->rank = rank;
  made->n_polls = nccl().some_polls();
  *comm = made.get();
  nccl().comms.emplace(made.get(), std::move(made));
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  ncclComm& one = nccl().at(comm);
  *state = nccl().error;
  const bool has_work = is_in_progress(one) || (one.is_finalized && !all_moved(one));
  if (*state == ncclSuccess && has_work) *state = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ncclComm& one = nccl().at(comm);
  if (!one.is_ready || one.launch != nullptr || one.is_finalized) {
    throw EmulatorError("a communicator is finalized while it is in progress, or twice");
  }
  one.is_finalized = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const ncclComm& one = nccl().at(comm);
  if (!all_moved(one)) {
    throw EmulatorError("a communicator is destroyed before its work has ended; abort it");
  }
  if (one.launch != nullptr) throw EmulatorError("a communicator is destroyed in progress");
  nccl().comms.erase(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  for (const std::shared_ptr<GroupOp>& op : nccl().at(comm).ops) op->is_aborted = true;
  nccl().comms.erase(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++nccl().group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  Nccl& all = nccl();
  if (all.group_depth > 1) {
    --all.group_depth;
    return ncclSuccess;
  }
  all.group_depth = 0;
  const std::vector<Call> calls = std::exchange(all.calls, {});
  ncclResult_t result = ncclSuccess;
  std::set<ncclComm_t> begun;
  for (const Call& one : calls) {
    if (!begun.insert(one.comm).second) continue;
    std::vector<Call> same;
    for (const Call& other : calls) {
      if (other.comm == one.comm) same.push_back(other);
    }
    if (begin_launch(*one.comm, same) == ncclInProgress) result = ncclInProgress;
  }
  return result;
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::send, from, const_cast<void*>(from), count, dtype, peer, comm, stream});
}

ncclResult_t ncclRecv(void* into, std::size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::receive, into, into, count, dtype, peer, comm, stream});
}

ncclResult_t ncclAllReduce(const void* from, void* into, std::size_t count, ncclDataType_t dtype,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::all_reduce, from, into, count, dtype, 0, comm, stream});
}

ncclResult_t ncclReduceScatter(const void* from, void* into, std::size_t count_each,
                               ncclDataType_t dtype, ncclRedOp_t, ncclComm_t comm,
                               cudaStream_t stream) {
  return call({Kind::reduce_scatter, from, into, count_each, dtype, 0, comm, stream});
}

ncclResult_t ncclReduce(const void* from, void* into, std::size_t count, ncclDataType_t dtype,
                        ncclRedOp_t, int root, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::reduce, from, into, count, dtype, root, comm, stream});
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}
