#pragma once
#include <coroutine>
#include <cstdint>

#include "src/base/check.h"
#include "src/rt/clock.h"
#include "src/rt/loop.h"

namespace llm {

/// Something that happens once: a transfer is done, a queue has passed a point. One coroutine may
/// wait for it, before or after it happened. The setter keeps a reference: an Event outlives its
/// cause.
class Event {
 public:
  /// `name` outlives the event.
  Event(Loop& loop, const WaitName& name, std::int64_t key = 0) : wait_(loop, name, key) {}
  Event(Loop& loop, WaitName&& name, std::int64_t key = 0) = delete;

  void set() {
    CHECK_CONTRACT(!set_, "an event happens once");
    set_ = true;
    if (flow_id_ != 0) end_flow_now();
    if (count_ != nullptr) ++*count_;
    if (wait_.suspended()) wait_.wake();
  }
  bool is_set() const { return set_; }
  /// Ends a trace's message arrow on the actor's row when the event is set.
  void end_flow(int actor, std::uint64_t flow_id) {
    flow_actor_ = actor;
    flow_id_ = flow_id;
  }
  /// Adds one to `count` when the event is set; the first that is given counts.
  void count_in(std::int64_t& count) {
    if (count_ == nullptr) count_ = &count;
  }
  /// co_await event: returns once it is set.
  auto operator co_await() {
    struct Awaiter {
      explicit Awaiter(Event& e) : event(e) {}
      bool await_ready() const noexcept { return event.set_; }
      void await_suspend(std::coroutine_handle<> coroutine) const {
        event.wait_.suspend(coroutine);
      }
      void await_resume() const noexcept {}
      Event& event;
    };
    return Awaiter(*this);
  }

 private:
  void end_flow_now() const {
    if (wait_.loop().trace != nullptr)
      wait_.loop().trace->flow_end(flow_actor_, flow_id_, now_ns());
  }

  Wait wait_;
  bool set_ = false;
  int flow_actor_ = 0;
  std::uint64_t flow_id_ = 0;
  std::int64_t* count_ = nullptr;
};

}  // namespace llm
