#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "src/base/check.h"
#include "src/rt/inbox.h"

namespace llm {

/// Where an actor sends messages of one kind. It leads to an inbox on this rank, to another rank,
/// or to several; the actor cannot tell. Sending never waits.
template <typename Message>
class Port {
 public:
  Port() = default;
  explicit Port(std::function<void(std::int64_t key, Message message)> deliver)
      : deliver_(std::move(deliver)) {}
  void operator()(std::int64_t key, Message message) const {
    CHECK_CONTRACT(deliver_ != nullptr, "a port is connected before it is used");
    deliver_(key, std::move(message));
  }

 private:
  std::function<void(std::int64_t, Message)> deliver_;
};

/// A port into an inbox of this rank.
template <typename Message>
Port<Message> port_to(Inbox<Message>& inbox) {
  return Port<Message>(
      [&inbox](std::int64_t key, Message message) { inbox.put(key, std::move(message)); });
}

}  // namespace llm
