// One message from an actor to another of the same rank and back, as everything else stands still.
#include <algorithm>
#include <cstdio>

#include "src/rt/clock.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"

namespace {

using namespace llm;

constexpr std::int64_t n_round_trips = 10'000;
constexpr int n_repeats = 300;

Task<> player(Inbox<std::int64_t>& inbox, Port<std::int64_t> other, bool begins) {
  if (begins) other(0, 0);
  for (std::int64_t n = 0; n < n_round_trips; ++n) {
    const std::int64_t ball = co_await inbox.take(n);
    if (!begins || n + 1 < n_round_trips) other(begins ? n + 1 : n, ball + 1);
  }
}

Task<> yielder(Loop& loop) {
  for (std::int64_t n = 0; n < n_round_trips; ++n) co_await loop.yield();
}

double hop_ns() {
  Loop loop;
  Inbox<std::int64_t> one(loop, WaitName("ball"));
  Inbox<std::int64_t> other(loop, WaitName("ball"));
  loop.spawn("one", player(one, port_to(other), true));
  loop.spawn("other", player(other, port_to(one), false));
  const std::int64_t begin_ns = now_ns();
  loop.run();
  return static_cast<double>(now_ns() - begin_ns) / (2.0 * n_round_trips);
}

double yield_ns() {
  Loop loop;
  loop.spawn("yielder", yielder(loop));
  const std::int64_t begin_ns = now_ns();
  loop.run();
  return static_cast<double>(now_ns() - begin_ns) / n_round_trips;
}

}  // namespace

int main() {
  double hop = hop_ns();
  double yield = yield_ns();
  for (int n = 1; n < n_repeats; ++n) {
    hop = std::min(hop, hop_ns());
    yield = std::min(yield, yield_ns());
  }
  std::printf("local hop through port and inbox: %.1f ns a message\n", hop);
  std::printf("reschedule of a coroutine:        %.1f ns\n", yield);
}
