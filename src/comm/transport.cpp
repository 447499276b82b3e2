#include "src/comm/transport.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/rt/clock.h"

namespace llm {

std::string name_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::activation:
      return "activation";
    case MessageKind::input_grad:
      return "input_grad";
    case MessageKind::partial_sum:
      return "partial_sum";
    case MessageKind::gathered:
      return "gathered";
    case MessageKind::broadcast:
      return "broadcast";
    case MessageKind::embedding_grad:
      return "embedding_grad";
    case MessageKind::embedding:
      return "embedding";
    case MessageKind::parameter:
      return "parameter";
    case MessageKind::shared_memory:
      return "shared_memory";
    case MessageKind::vector_ready:
      return "vector_ready";
    case MessageKind::piece_summed:
      return "piece_summed";
    case MessageKind::expert_begins:
      return "expert_begins";
    case MessageKind::expert_rows:
      return "expert_rows";
    case MessageKind::sum_announced:
      return "sum_announced";
    case MessageKind::user:
      return "user";
  }
  return "kind " + std::to_string(static_cast<int>(kind));
}

std::string to_string(const Header& header) {
  return fmt::format("{} step {} index {} part {}: {} {}", name_of(header.kind), header.step,
                     header.index, header.part, header.n_elements, name_of(header.dtype));
}

void check_header(const Header& expected, const Header& arrived, int peer, int tag) {
  if (arrived == expected) return;
  throw CommError(
      fmt::format("a message from rank {} on tag {} is not the one expected: expected [{}], "
                  "arrived [{}]",
                  peer, tag, to_string(expected), to_string(arrived)));
}

std::uint64_t Transport::flow_id(int from, int to, int tag, std::int64_t sequence) const {
  std::uint64_t id = mix_key(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to));
  id = mix_key(id, static_cast<std::uint64_t>(tag));
  return mix_key(id, static_cast<std::uint64_t>(sequence));
}

void Transport::send(int peer, int tag, Header header, View tensor, Event& sent) {
  CHECK_CONTRACT(0 <= tag && tag < n_tags, "a tag is in MPI's promised range");
  header.dtype = tensor.dtype();
  header.n_elements = tensor.n_elements();
  ++counts_.messages_sent;
  counts_.bytes_sent += tensor.n_bytes();
  LaneCounts& lane = lanes_[{peer, tag}];
  if (loop_.trace != nullptr && loop_.current() != nullptr) {
    loop_.trace->flow_begin(loop_.current()->id(), flow_id(rank(), peer, tag, lane.sent), now_ns());
  }
  ++lane.sent;
  lane.last_sent = header;
  do_send(peer, tag, header, tensor, sent);
}

void Transport::receive(int peer, int tag, Header expected, MutView tensor, Event& received) {
  CHECK_CONTRACT(0 <= tag && tag < n_tags, "a tag is in MPI's promised range");
  expected.dtype = tensor.dtype();
  expected.n_elements = tensor.n_elements();
  LaneCounts& lane = lanes_[{peer, tag}];
  if (loop_.trace != nullptr && loop_.current() != nullptr) {
    received.end_flow(loop_.current()->id(), flow_id(peer, rank(), tag, lane.awaited));
  }
  ++lane.awaited;
  lane.open.push_back(expected);
  while (static_cast<std::int64_t>(lane.open.size()) > lane.awaited - lane.arrived) {
    lane.open.pop_front();
  }
  received.count_in(lane.arrived);
  do_receive(peer, tag, expected, tensor, received);
}

void Transport::send_control(int peer, ControlHeader header, std::span<const std::byte> payload) {
  CHECK_CONTRACT(payload.size() <= max_control_bytes, "a control message is small");
  header.n_bytes = static_cast<std::int32_t>(payload.size());
  if (header.channel != stall_channel) {
    ++counts_.control_sent;
    const std::int64_t sequence = channels_[{peer, header.channel}].sent++;
    if (loop_.trace != nullptr && loop_.current() != nullptr) {
      loop_.trace->flow_begin(loop_.current()->id(),
                              flow_id(rank(), peer, n_tags + header.channel, sequence), now_ns(),
                              true);
    }
  }
  do_send_control(peer, header, payload);
}

void Transport::deliver_control(int peer, const ControlHeader& header,
                                std::span<const std::byte> payload) {
  std::uint64_t arriving = 0;
  if (header.channel == stall_channel) {
    loop_.discount_turn();
    if (stall_) return stall_(peer, header, payload);
  } else {
    const std::int64_t sequence = channels_[{peer, header.channel}].arrived++;
    arriving = flow_id(peer, rank(), n_tags + header.channel, sequence);  // tags end there
  }
  CHECK_CONTRACT(control_ != nullptr, "control messages have a handler");
  if (loop_.trace != nullptr) loop_.trace->set_arriving(arriving);
  control_(peer, header, payload);
  if (loop_.trace != nullptr) loop_.trace->set_arriving(0);
}

Group::Group(Transport& transport_, std::vector<int> ranks_)
    : transport(transport_), ranks(std::move(ranks_)) {
  const auto self = std::find(ranks.begin(), ranks.end(), transport.rank());
  CHECK_CONTRACT(self != ranks.end(), "a rank is a member of its own group");
  index = static_cast<int>(self - ranks.begin());
}

}  // namespace llm
