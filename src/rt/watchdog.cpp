#include "src/rt/watchdog.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

namespace llm {
namespace {

// Looks within a timeout: a process that was stopped meanwhile has missed all but one of them.
constexpr int n_looks = 16;
constexpr double most_interval_seconds = 10;

}  // namespace

Watchdog::Watchdog(const Loop& loop, double seconds, std::function<void(double)> on_stuck)
    : loop_(loop),
      seconds_(seconds),
      interval_seconds_(std::clamp(seconds / n_looks, 0.001, most_interval_seconds)),
      on_stuck_(std::move(on_stuck)),
      n_turns_(loop.n_turns()),
      ticker_(std::chrono::milliseconds(static_cast<std::int64_t>(interval_seconds_ * 1e3)),
              [this] { look(); }) {}

void Watchdog::look() {
  const bool was_stuck = stuck_seconds_ >= seconds_;
  const std::uint64_t n_turns = loop_.n_turns();
  stuck_seconds_ = n_turns == n_turns_ ? stuck_seconds_ + interval_seconds_ : 0;
  n_turns_ = n_turns;
  if (!was_stuck && stuck_seconds_ >= seconds_) on_stuck_(stuck_seconds_);
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
