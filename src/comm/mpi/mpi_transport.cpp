#include "src/comm/mpi/mpi_transport.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include "src/comm/mpi/check_mpi.h"
#include "src/comm/mpi/communicator.h"

namespace llm {
namespace {

// With its header under the 4096 bytes that shared memory sends at once (vader's eager limit).
constexpr std::size_t slot_bytes = sizeof(ControlHeader) + max_control_bytes;
constexpr std::size_t n_slots = 16;
constexpr int control_tag = 0;
// A send up to this size has usually left when the call returns: asking at once keeps it off the
// list that every poll goes through.
constexpr std::int64_t eager_bytes = 4096;
constexpr int header_part = -1;
// Testsome takes 1.1 ns a request and 10 ns a call.
constexpr std::size_t cheap_requests = 32;

using ControlBuffer = std::array<std::byte, slot_bytes>;

/// Objects with fixed addresses that are used again and again.
template <typename T>
class Pool {
 public:
  T& take() {
    if (free_.empty()) return all_.emplace_back();
    T& object = *free_.back();
    free_.pop_back();
    return object;
  }
  void give_back(T& object) { free_.push_back(&object); }

 private:
  std::deque<T> all_;
  std::vector<T*> free_;
};

/// One tensor message on its way, here or there.
struct Operation {
  Header header;    ///< as it is sent, or as it arrived
  Header expected;  ///< of a receive
  int peer = 0;
  int tag = 0;
  bool is_receive = false;
  int n_left = 0;  ///< requests that have not completed
  std::int64_t n_bytes = 0;
  std::int64_t piece_bytes = 0;
  Event* done = nullptr;

  int n_pieces() const { return static_cast<int>((n_bytes + piece_bytes - 1) / piece_bytes); }
  std::int64_t bytes_of(int piece) const {
    return std::min(piece_bytes, n_bytes - piece * piece_bytes);
  }
};

/// What a request in flight belongs to: a part of a tensor message, or a control message.
struct Owner {
  Operation* operation;
  int part;
  ControlBuffer* control;
};

}  // namespace

struct MpiTransport::State {
  State(const MpiSession& session, Options options);

  Operation& begin(int peer, int tag, std::int64_t n_bytes, Event& done);
  void keep(MPI_Request request, const Owner& owner);
  void send(const void* bytes, std::int64_t n, int peer, int tag, MPI_Comm comm,
            const Owner& owner);
  void receive(void* bytes, std::int64_t n, const Owner& owner);
  void post_slot(std::size_t slot);
  void post_taken_slots();

  bool poll(MpiTransport& transport);
  bool poll_control(MpiTransport& transport);
  bool failed(std::size_t i) const {
    return some_failed && statuses[i].MPI_ERROR != MPI_SUCCESS &&
           statuses[i].MPI_ERROR != MPI_ERR_PENDING;
  }
  void check(std::size_t i, const Owner& owner) const;
  void complete(const Owner& owner);
  void forget_completed();
  void take_controls(MpiTransport& transport, MPI_Status status);
  void take_control(MpiTransport& transport, const MPI_Status& status);
  bool take_back_receives();

  std::vector<std::int64_t> piece_bytes;  // by rank
  MPI_Comm data = MPI_COMM_NULL;
  MPI_Comm control = MPI_COMM_NULL;
  // Dense, so that one Testsome asks for all. Entry 0 is the oldest control receive: messages match
  // receives in the order of posting, so it holds the next message whenever there is one.
  std::vector<MPI_Request> requests;
  std::vector<Owner> owners;
  std::vector<int> completed;  // as long as requests, like statuses: Testsome writes them
  std::vector<MPI_Status> statuses;
  int n_completed = 0;
  bool some_failed = false;
  Pool<Operation> operations;
  Pool<ControlBuffer> control_sends;
  std::array<ControlBuffer, n_slots> slots{};
  std::array<MPI_Request, n_slots> slot_requests{};
  std::size_t oldest_slot = 0;
  std::size_t n_taken_slots = 0;  // before the oldest: free, and posted again by the next poll
};

MpiTransport::State::State(const MpiSession& session, Options options) {
  for (int rank = 0; rank < session.n_ranks(); ++rank) {
    piece_bytes.push_back(session.is_on_this_node(rank) ? options.piece_bytes
                                                        : options.far_piece_bytes);
  }
}

Operation& MpiTransport::State::begin(int peer, int tag, std::int64_t n_bytes, Event& done) {
  Operation& operation = operations.take();
  operation.peer = peer;
  operation.tag = tag;
  operation.n_bytes = n_bytes;
  operation.piece_bytes = piece_bytes[static_cast<std::size_t>(peer)];
  operation.n_left = 1 + operation.n_pieces();
  operation.done = &done;
  return operation;
}

void MpiTransport::State::keep(MPI_Request request, const Owner& owner) {
  requests.push_back(request);
  owners.push_back(owner);
  completed.resize(requests.size());
  statuses.resize(requests.size());
}

void MpiTransport::State::send(const void* bytes, std::int64_t n, int peer, int tag, MPI_Comm comm,
                               const Owner& owner) {
  MPI_Request request = MPI_REQUEST_NULL;
  CHECK_MPI(MPI_Isend(bytes, static_cast<int>(n), MPI_BYTE, peer, tag, comm, &request), peer);
  int has_left = 0;
  if (n <= eager_bytes) CHECK_MPI(MPI_Test(&request, &has_left, MPI_STATUS_IGNORE), peer);
  has_left != 0 ? complete(owner) : keep(request, owner);
}

void MpiTransport::State::receive(void* bytes, std::int64_t n, const Owner& owner) {
  const Operation& operation = *owner.operation;
  MPI_Request request = MPI_REQUEST_NULL;
  CHECK_MPI(MPI_Irecv(bytes, static_cast<int>(n), MPI_BYTE, operation.peer, operation.tag, data,
                      &request),
            operation.peer);
  keep(request, owner);
}

void MpiTransport::State::post_slot(std::size_t slot) {
  CHECK_MPI(MPI_Irecv(slots[slot].data(), static_cast<int>(slot_bytes), MPI_BYTE, MPI_ANY_SOURCE,
                      control_tag, control, &slot_requests[slot]),
            no_peer);
}

bool MpiTransport::State::poll(MpiTransport& transport) {
  post_taken_slots();
  if (requests.size() == 1) return poll_control(transport);
  const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &n_completed,
                                completed.data(), statuses.data());
  some_failed = code == MPI_ERR_IN_STATUS;
  if (code != MPI_SUCCESS && !some_failed) throw_mpi_error("MPI_Testsome", code, no_peer);
  if (n_completed <= 0) return false;
  const auto n = static_cast<std::size_t>(n_completed);
  const auto owner_of = [&](std::size_t i) -> const Owner& {
    return owners[static_cast<std::size_t>(completed[i])];
  };
  // Headers first: a wrong header says more than the truncated tensor that follows from it.
  for (std::size_t i = 0; i < n; ++i) {
    if (owner_of(i).part == header_part) check(i, owner_of(i));
  }
  const MPI_Status* control_status = nullptr;
  bool progress = false;
  for (std::size_t i = 0; i < n; ++i) {
    if (owner_of(i).part != header_part) check(i, owner_of(i));
    // Nobody waits for a control message to leave.
    progress |= owner_of(i).control == nullptr;
    if (completed[i] == 0) {
      control_status = &statuses[i];
    } else {
      complete(owner_of(i));
    }
  }
  const MPI_Status control_copy = control_status != nullptr ? *control_status : MPI_Status{};
  const bool has_control = control_status != nullptr;
  forget_completed();
  if (has_control) take_controls(transport, control_copy);
  return progress;
}

/// The idle case. Test looks again after it let MPI progress, where Testsome leaves that to the
/// next poll: a hop is a turn of the loop shorter.
bool MpiTransport::State::poll_control(MpiTransport& transport) {
  int is_here = 0;
  MPI_Status status;
  CHECK_MPI(MPI_Test(&requests[0], &is_here, &status), no_peer);
  if (is_here != 0) take_control(transport, status);
  return is_here != 0;
}

/// Throws CommError where completed request `i` failed or holds what was not expected.
void MpiTransport::State::check(std::size_t i, const Owner& owner) const {
  const Operation* const operation = owner.operation;
  if (operation == nullptr) {
    if (failed(i)) throw_mpi_error("a control message", statuses[i].MPI_ERROR, no_peer);
    return;
  }
  const bool is_header = owner.part == header_part;
  if (!operation->is_receive) {
    if (failed(i)) throw_mpi_error("MPI_Isend", statuses[i].MPI_ERROR, operation->peer);
    return;
  }
  int n_arrived = 0;
  CHECK_MPI(MPI_Get_count(&statuses[i], MPI_BYTE, &n_arrived), operation->peer);
  const std::int64_t n_expected =
      is_header ? static_cast<std::int64_t>(sizeof(Header)) : operation->bytes_of(owner.part);
  if (failed(i) || n_arrived != n_expected) {
    const std::string reason = failed(i) ? ": " + mpi_text(statuses[i].MPI_ERROR) : "";
    throw CommError(fmt::format(
        "a message from rank {} on tag {} is not the one expected: expected the {} of [{}] with {} "
        "bytes, arrived {}{} bytes{}",
        operation->peer, operation->tag, is_header ? "header" : fmt::format("piece {}", owner.part),
        to_string(operation->expected), n_expected, failed(i) ? "more than " : "",
        failed(i) ? n_expected : n_arrived, reason));
  }
  if (is_header) {
    check_header(operation->expected, operation->header, operation->peer, operation->tag);
  }
}

void MpiTransport::State::complete(const Owner& owner) {
  if (owner.control != nullptr) {
    control_sends.give_back(*owner.control);
    return;
  }
  Operation& operation = *owner.operation;
  if (--operation.n_left > 0) return;
  operation.done->set();
  operations.give_back(operation);
}

/// Closes the gaps that completed requests left, from the back, each with the last one.
void MpiTransport::State::forget_completed() {
  const auto end = completed.begin() + n_completed;
  std::sort(completed.begin(), end, std::greater<>());
  for (auto i = completed.begin(); i != end && *i != 0; ++i) {
    const auto gap = static_cast<std::size_t>(*i);
    requests[gap] = requests.back();
    owners[gap] = owners.back();
    requests.pop_back();
    owners.pop_back();
  }
}

/// The next message may be here too. Asking costs as much as a poll of few requests, so with few it
/// waits for the next poll.
void MpiTransport::State::take_controls(MpiTransport& transport, MPI_Status status) {
  take_control(transport, status);
  for (std::size_t n = 1; n < n_slots - 1 && requests.size() > cheap_requests; ++n) {
    int is_here = 0;
    CHECK_MPI(MPI_Test(&requests[0], &is_here, &status), no_peer);
    if (is_here == 0) return;
    take_control(transport, status);
  }
}

void MpiTransport::State::take_control(MpiTransport& transport, const MPI_Status& status) {
  const ControlBuffer& slot = slots[oldest_slot];
  int n_bytes = 0;
  CHECK_MPI(MPI_Get_count(&status, MPI_BYTE, &n_bytes), status.MPI_SOURCE);
  const auto n = static_cast<std::size_t>(n_bytes);
  if (n < sizeof(ControlHeader)) {
    throw CommError(fmt::format("a control message from rank {} has {} bytes, its header alone {}",
                                status.MPI_SOURCE, n, sizeof(ControlHeader)));
  }
  ControlHeader header;
  std::memcpy(&header, slot.data(), sizeof(header));
  transport.deliver_control(status.MPI_SOURCE, header,
                            std::span(slot).subspan(sizeof(header), n - sizeof(header)));
  slot_requests[oldest_slot] = MPI_REQUEST_NULL;
  ++n_taken_slots;
  oldest_slot = (oldest_slot + 1) % n_slots;
  requests[0] = slot_requests[oldest_slot];
}

/// Messages match receives in the order of posting, so slots go back in the order of the ring.
void MpiTransport::State::post_taken_slots() {
  for (; n_taken_slots > 0; --n_taken_slots) {
    post_slot((oldest_slot + n_slots - n_taken_slots) % n_slots);
  }
}

/// Cancels the receives that nothing has answered. True when nothing is in flight afterwards.
bool MpiTransport::State::take_back_receives() {
  int is_down = 0;
  MPI_Finalized(&is_down);
  if (is_down != 0) return false;
  bool has_tensors = false;
  for (std::size_t i = 1; i < requests.size(); ++i) {
    const Operation* const operation = owners[i].operation;
    has_tensors = has_tensors || operation != nullptr;
    if (operation != nullptr && operation->is_receive && requests[i] != MPI_REQUEST_NULL) {
      MPI_Cancel(&requests[i]);
    }
  }
  slot_requests[oldest_slot] = requests[0];
  for (MPI_Request& request : slot_requests) {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  // Tensors in flight mean an error on its way out, and their memory may be gone by now: a call
  // that lets MPI progress would write there.
  if (has_tensors) return false;
  bool all_done = true;
  for (MPI_Request& request : slot_requests) requests.push_back(request);
  for (std::size_t i = 1; i < requests.size(); ++i) {
    int done = 0;
    MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
    all_done = all_done && done != 0;
  }
  return all_done;
}

MpiTransport::MpiTransport(const MpiSession& session, Loop& loop, Options options)
    : Transport(loop),
      rank_(session.rank()),
      n_ranks_(session.n_ranks()),
      state_(std::make_unique<State>(session, options)) {
  for (const std::int64_t piece_bytes : {options.piece_bytes, options.far_piece_bytes}) {
    CHECK_CONTRACT(piece_bytes > 0 && piece_bytes <= std::int64_t{1} << 30,
                   "a piece's bytes fit MPI's int");
  }
  for (MPI_Comm* comm : {&state_->data, &state_->control}) {
    CHECK_MPI(MPI_Comm_dup(session.communicator().all, comm), no_peer);
    CHECK_MPI(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), no_peer);
  }
  for (std::size_t slot = 0; slot < n_slots; ++slot) state_->post_slot(slot);
  state_->keep(state_->slot_requests[0], {nullptr, 0, nullptr});
  loop.add_poller(*this);
}

MpiTransport::~MpiTransport() {
  loop().remove_poller(*this);
  // What MPI may still read or write keeps its memory until the process ends. The communicators
  // stay as well: freeing them is collective, and peers may be gone.
  if (!state_->take_back_receives()) static_cast<void>(state_.release());
}

bool MpiTransport::poll() {
  return state_->poll(*this);
}

void MpiTransport::do_send(int peer, int tag, const Header& header, View tensor, Event& sent) {
  Operation& operation = state_->begin(peer, tag, tensor.n_bytes(), sent);
  operation.is_receive = false;
  operation.header = header;
  const auto* bytes = static_cast<const std::byte*>(tensor.data());
  state_->send(&operation.header, sizeof(Header), peer, tag, state_->data,
               {&operation, header_part, nullptr});
  const int n_pieces = operation.n_pieces();
  for (int piece = 0; piece < n_pieces; ++piece) {
    state_->send(bytes + piece * operation.piece_bytes, operation.bytes_of(piece), peer, tag,
                 state_->data, {&operation, piece, nullptr});
  }
}

void MpiTransport::do_receive(int peer, int tag, const Header& expected, MutView tensor,
                              Event& received) {
  Operation& operation = state_->begin(peer, tag, tensor.n_bytes(), received);
  operation.is_receive = true;
  operation.expected = expected;
  auto* bytes = static_cast<std::byte*>(tensor.data());
  state_->receive(&operation.header, sizeof(Header), {&operation, header_part, nullptr});
  const int n_pieces = operation.n_pieces();
  for (int piece = 0; piece < n_pieces; ++piece) {
    state_->receive(bytes + piece * operation.piece_bytes, operation.bytes_of(piece),
                    {&operation, piece, nullptr});
  }
}

void MpiTransport::do_send_control(int peer, const ControlHeader& header,
                                   std::span<const std::byte> payload) {
  ControlBuffer& buffer = state_->control_sends.take();
  std::memcpy(buffer.data(), &header, sizeof(header));
  if (!payload.empty()) {
    std::memcpy(buffer.data() + sizeof(header), payload.data(), payload.size());
  }
  state_->send(buffer.data(), static_cast<std::int64_t>(sizeof(header) + payload.size()), peer,
               control_tag, state_->control, {nullptr, 0, &buffer});
}

}  // namespace llm
