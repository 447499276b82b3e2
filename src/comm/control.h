#pragma once
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"

namespace llm {

/// Routes control messages: a port on one rank leads to an inbox on another, by channel number.
/// Both sides choose the number in their wiring. What arrives before its inbox is connected is
/// kept.
class ControlPlane {
 public:
  explicit ControlPlane(Transport& transport);

  /// Messages on `channel`, from any rank, go to `inbox`.
  template <typename Message>
  void connect(int channel, Inbox<Message>& inbox) {
    static_assert(std::is_trivially_copyable_v<Message>, "a control message is copied as bytes");
    route(channel, inbox.name().kind, sizeof(Message),
          [&inbox](std::int64_t key, std::span<const std::byte> payload) {
            Message message{};
            std::memcpy(&message, payload.data(), sizeof(Message));
            inbox.put(key, message);
          });
  }

  /// A port to the inbox that rank `peer` connected to `channel`; this rank itself is a peer too.
  template <typename Message>
  Port<Message> port(int peer, int channel) {
    static_assert(sizeof(Message) <= max_control_bytes);
    return Port<Message>([this, peer, channel](std::int64_t key, Message message) {
      send(peer, ControlHeader(channel, sizeof(Message), key),
           std::as_bytes(std::span(&message, 1)));
    });
  }

  /// What this rank's inboxes call the messages of a channel; "channel 3" where none is connected.
  std::string kind_of(int channel) const;

 private:
  using Deliver = std::function<void(std::int64_t key, std::span<const std::byte> payload)>;
  struct Route {
    std::string kind;
    std::size_t n_bytes;
    Deliver deliver;
  };
  struct Kept {
    int peer;
    ControlHeader header;
    std::vector<std::byte> payload;
  };
  void route(int channel, std::string kind, std::size_t n_bytes, Deliver deliver);
  void send(int peer, const ControlHeader& header, std::span<const std::byte> payload);
  void deliver(int peer, const ControlHeader& header, std::span<const std::byte> payload);

  Transport& transport_;
  std::map<int, Route> routes_;
  std::vector<Kept> early_;
};

}  // namespace llm
