#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/philox.h"
#include "src/comm/queue_poller.h"
#include "src/rt/inbox.h"
#include "src/rt/loop.h"
#include "src/rt/port.h"
#include "tensor/queue.h"

namespace llm {

/// A loop with one compute queue, for one actor on its own.
struct Rig {
  Rig() : loop(options()), poller(queue, 1) { loop.add_poller(poller); }
  ~Rig() {
    loop.drop_actors();
    loop.remove_poller(poller);
  }
  static Loop::Options options() {
    Loop::Options options;
    options.stall_timeout_seconds = 20;
    return options;
  }

  Loop loop;
  Queue queue;
  QueuePoller poller;
};

/// What a port was given, in order.
template <typename Message>
struct Sent {
  Port<Message> port() {
    return Port<Message>([this](std::int64_t key, Message message) {
      keys.push_back(key);
      messages.push_back(message);
    });
  }
  std::vector<std::int64_t> keys;
  std::vector<Message> messages;
};

template <typename T>
std::vector<T> shuffled(std::vector<T> items, std::uint64_t seed) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[philox_at(seed, i)[0] % i]);
  }
  return items;
}

/// Puts messages into an inbox in the order given, after 0 to 15 turns of the loop each.
template <typename Message>
Task<> deliver(Loop& loop, Inbox<Message>& inbox,
               std::vector<std::pair<std::int64_t, Message>> messages, std::uint64_t seed) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (std::uint32_t n = philox_at(seed, i)[1] % 16; n > 0; --n) co_await loop.yield();
    inbox.put(messages[i].first, messages[i].second);
  }
}

}  // namespace llm
