#include "actors/queued_calls.h"

#include <memory>
#include <string>
#include <utility>

#include "src/rt/clock.h"

namespace llm {

QueuedCalls::QueuedCalls(Loop& loop, WaitName wait, const char* kind, const char* name)
    : loop_(loop), kind_(kind), name_(name), reached_(loop, std::move(wait), 1 << 20) {}

void QueuedCalls::enqueue(Queue& queue, std::function<void(std::int64_t)> reached) {
  const auto number = std::make_shared<std::int64_t>(-1);
  queue.notify([this, number, reached = std::move(reached), lane = queue.name()] {
    *number = n_reached_++;
    reached(*number);
    reached_.put(*number, Reached(lane));
  });
  queue.wait([this, number] { return n_done_ > *number; });
}

Task<> QueuedCalls::run() {
  for (std::int64_t call = 0;; ++call) {
    const Reached reached = co_await reached_.take(call);
    const std::int64_t begin_ns = now_ns();
    co_await carry_out(call);
    if (loop_.trace != nullptr) {
      const std::string name = std::string(name_) + reached.lane;
      loop_.trace->slice(loop_.current()->id(), kind_, name, call, begin_ns, now_ns());
    }
    n_done_ = call + 1;
  }
}

}  // namespace llm
