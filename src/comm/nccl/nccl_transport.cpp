#include "src/comm/nccl/nccl_transport.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/comm/nccl/nccl_link.h"

namespace llm {
namespace {

const WaitName wait_arrived{"message"};

/// What transports tell each other; the key of the control message.
enum class Word : std::int64_t { credit = 1, agreed, id };

/// A receive that is posted, or the tensor that is sent next.
struct Note {
  std::int32_t tag = 0;
  std::int32_t reserved = 0;
  std::int64_t number = 0;  ///< of the (sender, receiver, tag)'s messages, from 0
  Header header;
};

/// A tensor that waits for its credit.
struct Sending {
  std::int64_t number;
  Header header;
  View tensor;
  Event* sent;
};

struct SendLane {
  std::int64_t n_messages = 0;  ///< on the CPU or a device
  std::deque<Sending> waiting;
  std::deque<Note> credits;
};

struct Receiving {
  Receiving(std::int64_t number_, const Header& expected_, MutView tensor_, Event& received_)
      : number(number_), expected(expected_), tensor(tensor_), received(&received_) {}
  std::int64_t number;
  Header expected;
  MutView tensor;
  Event* received;
  std::optional<Event> arrived;  ///< of one on the CPU that must not overtake others
  bool is_agreed = false;
  bool is_done = false;
};

struct ReceiveLane {
  std::int64_t n_messages = 0;
  std::deque<Receiving> open;          ///< in order, from the first on a device on
  const LaneCounts* counts = nullptr;  ///< the transport's
};

[[noreturn]] void throw_places(int from, int to, int tag, std::int64_t number, bool is_at_sender) {
  throw CommError(
      fmt::format("message {} on tag {} from rank {} to rank {} lies on {} at the sender and on {} "
                  "at the receiver; NCCL moves tensors between devices",
                  number, tag, from, to, is_at_sender ? "a device" : "the CPU",
                  is_at_sender ? "the CPU" : "a device"));
}

template <typename T>
T read_as(std::span<const std::byte> payload) {
  CHECK_CONTRACT(payload.size() == sizeof(T), "both ends have the same notes");
  T value{};
  std::memcpy(&value, payload.data(), sizeof(T));
  return value;
}

}  // namespace

struct NcclTransport::State {
  State(const Transport& outer_, Transport& inner_, const NcclCalls& calls_)
      : outer(outer_), inner(inner_), calls(calls_) {}

  void send(int peer, int tag, const Header& header, View tensor, Event& sent);
  void receive(int peer, int tag, const Header& expected, MutView tensor, Event& received);
  void hear(int peer, const ControlHeader& header, std::span<const std::byte> payload);
  void agree(int peer, SendLane& lane);
  void send_next(int peer, const Note& credit, const Sending& sending);
  void receive_agreed(int peer, const Note& note);
  void end_receives(ReceiveLane& lane);
  bool poll();
  NcclLink& link(int from, int to);
  void tell(int peer, Word word, std::span<const std::byte> payload);

  const Transport& outer;
  Transport& inner;
  const NcclCalls& calls;
  std::map<ByPeer, SendLane> sends;
  std::map<ByPeer, ReceiveLane> receives;
  std::map<std::pair<int, int>, NcclLink> links;  // from, to
  std::set<ReceiveLane*> mixed;  ///< with receives on the CPU that others must not overtake
};

NcclLink& NcclTransport::State::link(int from, int to) {
  CHECK_CONTRACT(from != to, "a rank has its own tensors on its device");
  return links.try_emplace({from, to}, calls, from, to, from == inner.rank()).first->second;
}

void NcclTransport::State::tell(int peer, Word word, std::span<const std::byte> payload) {
  const ControlHeader header(nccl_channel, static_cast<std::int32_t>(payload.size()),
                             static_cast<std::int64_t>(word));
  pass_control(inner, peer, header, payload);
}

void NcclTransport::State::send(int peer, int tag, const Header& header, View tensor, Event& sent) {
  SendLane& lane = sends[{peer, tag}];
  const std::int64_t number = lane.n_messages++;
  if (tensor.device() == Device::cpu) {
    pass_send(inner, peer, tag, header, tensor, sent);
  } else {
    lane.waiting.push_back({number, header, tensor, &sent});
  }
  agree(peer, lane);
}

void NcclTransport::State::receive(int peer, int tag, const Header& expected, MutView tensor,
                                   Event& received) {
  ReceiveLane& lane = receives[{peer, tag}];
  const std::int64_t number = lane.n_messages++;
  if (tensor.device() == Device::cpu && lane.open.empty()) {
    return pass_receive(inner, peer, tag, expected, tensor, received);
  }
  lane.counts = &outer.lanes().at({peer, tag});
  const bool is_behind_others = lane.open.empty() && lane.counts->arrived < number;
  Receiving& one = lane.open.emplace_back(number, expected, tensor, received);
  if (tensor.device() == Device::cpu || is_behind_others) mixed.insert(&lane);
  if (tensor.device() == Device::cpu) {
    one.arrived.emplace(inner.loop(), wait_arrived);
    return pass_receive(inner, peer, tag, expected, tensor, *one.arrived);
  }
  Note credit;
  credit.tag = tag;
  credit.number = number;
  credit.header = expected;
  tell(peer, Word::credit, std::as_bytes(std::span(&credit, 1)));
}

void NcclTransport::State::hear(int peer, const ControlHeader& header,
                                std::span<const std::byte> payload) {
  switch (static_cast<Word>(header.key)) {
    case Word::credit: {
      const Note credit = read_as<Note>(payload);
      SendLane& lane = sends[{peer, credit.tag}];
      lane.credits.push_back(credit);
      return agree(peer, lane);
    }
    case Word::agreed:
      return receive_agreed(peer, read_as<Note>(payload));
    case Word::id:
      return link(peer, inner.rank()).begin(read_as<NcclCalls::Id>(payload));
  }
  CHECK_CONTRACT(false, "both ends know the same words");
}

/// Matches tensors with credits. Throws CommError where the ends have a message in different
/// places.
void NcclTransport::State::agree(int peer, SendLane& lane) {
  const int rank = inner.rank();
  while (!lane.credits.empty()) {
    const Note credit = lane.credits.front();
    const bool has_tensor = !lane.waiting.empty();
    const std::int64_t next = has_tensor ? lane.waiting.front().number : lane.n_messages;
    if (next > credit.number) throw_places(rank, peer, credit.tag, credit.number, false);
    if (!has_tensor) return;
    if (next < credit.number) throw_places(rank, peer, credit.tag, next, true);
    send_next(peer, credit, lane.waiting.front());
    lane.waiting.pop_front();
    lane.credits.pop_front();
  }
}

/// Where the headers differ the receiver says so, and nothing is given to NCCL.
void NcclTransport::State::send_next(int peer, const Note& credit, const Sending& sending) {
  Note note = credit;
  note.header = sending.header;
  const std::int64_t n_bytes = sending.tensor.n_bytes();
  const bool moves = n_bytes > 0 && credit.header == sending.header;
  NcclLink* const own = moves ? &link(inner.rank(), peer) : nullptr;
  if (moves && !own->has_begun()) {
    const NcclCalls::Id id = own->make_id();
    tell(peer, Word::id, id);
    own->begin(id);
  }
  tell(peer, Word::agreed, std::as_bytes(std::span(&note, 1)));
  if (moves) {
    own->put(const_cast<void*>(sending.tensor.data()), n_bytes,
             [sent = sending.sent] { sent->set(); });
  } else if (n_bytes == 0) {
    sending.sent->set();
  }
}

void NcclTransport::State::receive_agreed(int peer, const Note& note) {
  ReceiveLane& lane = receives[{peer, note.tag}];
  const auto is_next = [](const Receiving& one) { return !one.arrived && !one.is_agreed; };
  const auto found = std::find_if(lane.open.begin(), lane.open.end(), is_next);
  CHECK_CONTRACT(found != lane.open.end() && found->number == note.number,
                 "a sender agrees to receives in their order");
  check_header(found->expected, note.header, peer, note.tag);
  found->is_agreed = true;
  if (found->tensor.n_bytes() == 0) {
    found->is_done = true;
    return end_receives(lane);
  }
  Receiving& one = *found;
  link(peer, inner.rank()).put(one.tensor.data(), one.tensor.n_bytes(), [this, &one, &lane] {
    one.is_done = true;
    end_receives(lane);
  });
}

/// Tells those at the front that are done, in order.
void NcclTransport::State::end_receives(ReceiveLane& lane) {
  while (!lane.open.empty()) {
    const Receiving& first = lane.open.front();
    if (lane.counts->arrived < first.number) return;
    if (!first.is_done && !(first.arrived && first.arrived->is_set())) return;
    first.received->set();
    lane.open.pop_front();
  }
}

bool NcclTransport::State::poll() {
  bool progress = false;
  for (auto& [ends, own] : links) progress = own.poll(inner.loop().turn_ns()) || progress;
  for (auto lane = mixed.begin(); lane != mixed.end();) {
    const std::size_t n_before = (*lane)->open.size();
    end_receives(**lane);
    progress = progress || (*lane)->open.size() < n_before;
    lane = (*lane)->open.empty() ? mixed.erase(lane) : std::next(lane);
  }
  return progress;
}

NcclTransport::NcclTransport(Transport& inner, const NcclCalls& calls)
    : Transport(inner.loop()), inner_(inner), state_(std::make_unique<State>(*this, inner, calls)) {
  inner.on_control(
      [this](int peer, const ControlHeader& header, std::span<const std::byte> payload) {
        if (header.channel == nccl_channel) {
          if (loop().trace != nullptr) loop().trace->set_arriving(0);  // it has no arrow
          return state_->hear(peer, header, payload);
        }
        deliver_control(peer, header, payload);
      });
  loop().add_poller(*this);
}

NcclTransport::~NcclTransport() {
  loop().remove_poller(*this);
  inner_.on_control(nullptr);
}

bool NcclTransport::poll() {
  return state_->poll();
}

int NcclTransport::n_links() const {
  return static_cast<int>(state_->links.size());
}

void NcclTransport::do_send(int peer, int tag, const Header& header, View tensor, Event& sent) {
  state_->send(peer, tag, header, tensor, sent);
}

void NcclTransport::do_receive(int peer, int tag, const Header& expected, MutView tensor,
                               Event& received) {
  state_->receive(peer, tag, expected, tensor, received);
}

void NcclTransport::do_send_control(int peer, const ControlHeader& header,
                                    std::span<const std::byte> payload) {
  pass_control(inner_, peer, header, payload);
}

void set_nccl_environment() {
  constexpr int keep = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", keep);
  setenv("CUDA_MODULE_LOADING", "EAGER", keep);
  setenv("NCCL_DEBUG", "WARN", keep);     // the reason of an error is in a warning alone
  setenv("NCCL_NVLS_ENABLE", "0", keep);  // sums in a switch have other bits from call to call
}

}  // namespace llm
