#include "src/rt/ticker.h"

#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>

namespace llm {
namespace {

using std::chrono::milliseconds;

TEST_CASE("A ticker calls again and again, however long its owner is away, and not after its end") {
  std::atomic<int> n = 0;
  {
    const Ticker ticker(milliseconds(1), [&n] { ++n; });
    while (n < 3) std::this_thread::sleep_for(milliseconds(1));
  }
  const int n_at_end = n;
  std::this_thread::sleep_for(milliseconds(5));
  CHECK(n == n_at_end);
}

TEST_CASE("A ticker ends at once, however long its interval is") {
  const Ticker ticker(std::chrono::hours(1), [] {});
}

TEST_CASE("No signal of the process is delivered to a ticker's thread") {
  std::atomic<bool> is_blocked = false;
  std::atomic<bool> is_done = false;
  const Ticker ticker(milliseconds(1), [&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    is_blocked = sigismember(&mask, SIGUSR1) == 1 && sigismember(&mask, SIGTERM) == 1;
    is_done = true;
  });
  while (!is_done) std::this_thread::sleep_for(milliseconds(1));
  CHECK(is_blocked);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  CHECK(sigismember(&mask, SIGUSR1) == 0);
}

}  // namespace
}  // namespace llm
