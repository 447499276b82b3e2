#include "actors/queued_calls.h"

#include <utility>

#include "src/rt/clock.h"

namespace llm {

QueuedCalls::QueuedCalls(Loop& loop, WaitName wait, const char* kind, const char* name)
    : loop_(loop), kind_(kind), name_(name), reached_(loop, std::move(wait), 1 << 20) {}

void QueuedCalls::enqueue(Queue& queue) {
  const std::int64_t call = n_enqueued_++;
  queue.notify([this, call] { reached_.put(call, Ready{}); });
  queue.wait([this, call] { return n_done_ > call; });
}

Task<> QueuedCalls::run() {
  for (std::int64_t call = 0;; ++call) {
    co_await reached_.take(call);
    const std::int64_t begin_ns = now_ns();
    co_await carry_out(call);
    if (loop_.trace != nullptr) {
      loop_.trace->slice(loop_.current()->id(), kind_, name_, call, begin_ns, now_ns());
    }
    n_done_ = call + 1;
  }
}

}  // namespace llm
