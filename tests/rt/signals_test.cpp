#include <pthread.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "src/rt/loop.h"
#include "src/rt/signals.h"
#include "tensor/ops/matmul.h"

namespace llm {
namespace {

TEST_CASE("Signals that arrive while products are computed are seen and harm nothing") {
  Loop loop;
  const StopSignals signals(loop);
  CHECK_FALSE(signals.requested());

  std::atomic<bool> done = false;
  const pthread_t computing = pthread_self();
  std::thread sender([&] {
    while (!done) {
      pthread_kill(computing, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  constexpr std::int64_t ld = 256;
  const std::vector<float> a(ld * ld, 1.0f);
  const std::vector<float> b(ld * ld, 0.5f);
  std::vector<float> c(ld * ld);
  int n_wrong = 0;
  // The shapes of a small model's linear layers, forward and both backward products.
  for (int i = 0; i < 60'000; ++i) {
    const bool transpose_a = i % 3 == 0;
    const bool transpose_b = i % 3 == 1;
    const std::int64_t n = 32 + 32 * (i % 4);
    const std::int64_t k = 32 + 32 * (i % 3);
    matmul(
        {transpose_a, transpose_b, 64, n, k, 1.0f, a.data(), ld, b.data(), ld, 0.0f, c.data(), ld});
    n_wrong += c[0] != 0.5f * static_cast<float>(k);
  }
  done = true;
  sender.join();
  CHECK(n_wrong == 0);
  loop.io().restart();
  loop.io().poll();
  CHECK(signals.requested());
}

TEST_CASE("A wish to stop that comes before the loop is noted, and handed on") {
  {
    const EarlyStopSignals early;
    CHECK_FALSE(EarlyStopSignals::requested());
    std::raise(SIGUSR1);
    CHECK(EarlyStopSignals::requested());
    Loop loop;
    const StopSignals signals(loop);
    CHECK(signals.requested());
  }
  CHECK_FALSE(EarlyStopSignals::requested());
  Loop loop;
  const StopSignals signals(loop);
  CHECK_FALSE(signals.requested());
}

}  // namespace
}  // namespace llm
