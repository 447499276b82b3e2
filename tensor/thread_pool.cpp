#include "tensor/thread_pool.h"

#include <sched.h>

#include <chrono>
#include <utility>

#include "src/base/check.h"

namespace llm {
namespace {

using Clock = std::chrono::steady_clock;

// Within a step one op follows the other, so the next tile is mostly near. Then other ranks may
// want this core; a thread that sleeps takes some 5 us to wake.
constexpr auto spin_time = std::chrono::microseconds(20);
constexpr auto yield_time = std::chrono::microseconds(200);

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  CHECK_CONTRACT(n_threads >= 1, "a pool has its owner's thread");
  for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  cancel();
  stop_.store(true, std::memory_order_relaxed);
  n_begun_.fetch_add(1);
  n_begun_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::begin(std::int64_t n_tiles, const std::function<void(std::int64_t)>& run) {
  CHECK_CONTRACT(done(), "an op begins when the one before it is done");
  run_ = &run;
  n_tiles_ = n_tiles;
  n_open_.store(n_tiles, std::memory_order_relaxed);
  n_left_.store(n_tiles, std::memory_order_release);
  n_begun_.fetch_add(1);
  n_begun_.notify_all();
}

// Nothing of an op is read before one of its tiles is taken, and it cannot end before that tile is
// done: a thread that comes late, from an op long past, takes a tile of the present one or none.
bool ThreadPool::run_tile() {
  std::int64_t n_left = n_left_.load(std::memory_order_relaxed);
  do {
    if (n_left == 0) return false;
  } while (!n_left_.compare_exchange_weak(n_left, n_left - 1, std::memory_order_acquire,
                                          std::memory_order_relaxed));
  std::int64_t n_done = 1;
  try {
    (*run_)(n_tiles_ - n_left);
  } catch (const std::exception&) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
    n_done += n_left_.exchange(0, std::memory_order_relaxed);
  }
  n_open_.fetch_sub(n_done, std::memory_order_release);
  return true;
}

void ThreadPool::rethrow() {
  if (!failed_.load(std::memory_order_relaxed)) return;
  failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::cancel() {
  const std::int64_t n_taken_back = n_left_.exchange(0, std::memory_order_relaxed);
  n_open_.fetch_sub(n_taken_back, std::memory_order_release);
  while (!done()) sched_yield();
  failed_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
}

void ThreadPool::work() {
  for (;;) {
    // First: whoever reads the count of an op, or of the stop, sees all that came before it.
    const std::uint32_t n_begun = n_begun_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    while (run_tile()) {
    }
    wait_for_tiles(n_begun);
  }
}

/// Returns when an op began after `n_begun` of them, or the pool stops.
void ThreadPool::wait_for_tiles(std::uint32_t n_begun) const {
  const Clock::time_point since = Clock::now();
  while (n_begun_.load(std::memory_order_relaxed) == n_begun) {
    const auto waited = Clock::now() - since;
    if (waited > yield_time) return n_begun_.wait(n_begun, std::memory_order_relaxed);
    if (waited > spin_time) sched_yield();
  }
}

}  // namespace llm
