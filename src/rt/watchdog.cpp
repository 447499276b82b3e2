#include "src/rt/watchdog.h"

#include <algorithm>
#include <chrono>
#include <future>

namespace llm {
namespace {

// Looks within a timeout: a process that was stopped meanwhile has missed all but one of them.
constexpr int n_looks = 16;

}  // namespace

Watchdog::Watchdog(const Loop& loop, double seconds, std::function<void(double)> on_stuck)
    : loop_(loop), seconds_(seconds), on_stuck_(std::move(on_stuck)), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  const std::chrono::duration<double> interval(std::min(seconds_ / n_looks, 10.0));
  std::uint64_t n_turns = loop_.n_turns();
  double stuck_seconds = 0;
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, interval, [this] { return is_ended_; })) {
    const std::uint64_t n = loop_.n_turns();
    const bool was_stuck = stuck_seconds >= seconds_;
    stuck_seconds = n == n_turns ? stuck_seconds + interval.count() : 0;
    n_turns = n;
    if (was_stuck || stuck_seconds < seconds_) continue;
    lock.unlock();
    on_stuck_(stuck_seconds);
    lock.lock();
  }
}

bool run_at_most(double seconds, std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) {
    return false;
  }
  result.get();
  return true;
}

}  // namespace llm
