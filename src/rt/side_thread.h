#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include <memory>
#include <thread>

#include "src/rt/inbox.h"
#include "src/rt/task.h"

namespace llm {

/// One thread beside a loop for what would block it, as forcing a file to the disk does. The work
/// touches memory that nobody changes meanwhile, and no actor.
class SideThread {
 public:
  explicit SideThread(Loop& loop);
  /// Waits for the work that is under way.
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  /// Returns when the work is done; throws what it threw. One work at a time.
  Task<> run(std::function<void()> work);
  /// Called by the work, from its thread, now and then: it shows the loop that something moves, and
  /// throws where nobody waits for the work any more.
  void tick();

 private:
  Loop& loop_;
  std::shared_ptr<Inbox<bool>> finished_;  // by number of the work
  std::int64_t n_begun_ = 0;
  std::atomic<bool> is_dropped_{false};
  std::thread thread_;
};

}  // namespace llm
