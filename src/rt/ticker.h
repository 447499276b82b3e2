#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace llm {

/// Calls `work` again and again, from a thread of its own, while it lives: for what has to happen
/// however long this rank's own thread computes or waits for a disk. The first call is after one
/// interval. `work` throws nothing, and touches no actor. No signal is delivered to the thread.
class Ticker {
 public:
  Ticker(std::chrono::milliseconds interval, std::function<void()> work);
  /// Waits for a call that is under way.
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_ending_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace llm
