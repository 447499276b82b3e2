#include "src/comm/control.h"

#include <fmt/format.h>
#include "src/base/error.h"

namespace llm {

ControlPlane::ControlPlane(Transport& transport) : transport_(transport) {
  transport_.on_control(
      [this](int peer, const ControlHeader& header, std::span<const std::byte> payload) {
        deliver(peer, header, payload);
      });
}

std::string ControlPlane::kind_of(int channel) const {
  const auto found = routes_.find(channel);
  return found != routes_.end() ? found->second.kind : "channel " + std::to_string(channel);
}

void ControlPlane::route(int channel, std::string kind, std::size_t n_bytes, Deliver deliver_to) {
  Route route{std::move(kind), n_bytes, std::move(deliver_to)};
  const bool is_new = routes_.emplace(channel, std::move(route)).second;
  CHECK_CONTRACT(is_new, "a channel leads to one inbox");
  std::vector<Kept> still_early;
  std::vector<Kept> early = std::exchange(early_, {});
  for (Kept& kept : early) {
    if (kept.header.channel == channel) {
      deliver(kept.peer, kept.header, kept.payload);
    } else {
      still_early.push_back(std::move(kept));
    }
  }
  early_ = std::move(still_early);
}

void ControlPlane::send(int peer, const ControlHeader& header, std::span<const std::byte> payload) {
  if (peer == transport_.rank()) {
    deliver(peer, header, payload);
  } else {
    transport_.send_control(peer, header, payload);
  }
}

void ControlPlane::deliver(int peer, const ControlHeader& header,
                           std::span<const std::byte> payload) {
  if (header.magic != ControlHeader().magic ||
      header.n_bytes != static_cast<std::int32_t>(payload.size())) {
    throw CommError(
        fmt::format("a control message from rank {} is damaged: channel {}, {} of {} bytes", peer,
                    header.channel, payload.size(), header.n_bytes));
  }
  const auto found = routes_.find(header.channel);
  if (found == routes_.end()) {
    early_.push_back({peer, header, std::vector<std::byte>(payload.begin(), payload.end())});
    return;
  }
  if (found->second.n_bytes != payload.size()) {
    throw CommError(fmt::format("a control message from rank {} on channel {} has {} bytes, not {}",
                                peer, header.channel, payload.size(), found->second.n_bytes));
  }
  found->second.deliver(header.key, payload);
}

}  // namespace llm
