#pragma once
#include <cstdint>
#include <functional>

#include "src/rt/loop.h"
#include "src/rt/ticker.h"

namespace llm {

/// A thread that sees a loop stop turning: its thread is inside a call that does not return, in an
/// op, in MPI, in a read of a disk that is gone. It looks at nothing but the loop's counter of
/// turns, so a busy loop pays for a store a turn.
class Watchdog {
 public:
  /// `on_stuck` is called on the watchdog's thread, once for each time that the loop has not turned
  /// for `seconds`: then with the number of seconds. Time in which this process did not run is not
  /// counted.
  Watchdog(const Loop& loop, double seconds, std::function<void(double seconds)> on_stuck);
  /// Waits for an `on_stuck` that is under way.
  ~Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void look();

  const Loop& loop_;
  const double seconds_;
  const double interval_seconds_;
  const std::function<void(double)> on_stuck_;
  std::uint64_t n_turns_;
  double stuck_seconds_ = 0;
  Ticker ticker_;  // last: it uses what stands above
};

/// Runs `work` on a thread of its own and waits for its end, but no longer than `seconds`; the work
/// then goes on alone, so it may use nothing that ends. True when it is done. For what may block
/// forever on a run's way out.
bool run_at_most(double seconds, std::function<void()> work);

}  // namespace llm
