#include "src/rt/ticker.h"

#include <csignal>
#include <utility>

namespace llm {

Ticker::Ticker(std::chrono::milliseconds interval, std::function<void()> work) {
  // A thread starts with the mask of the one that makes it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, interval, work = std::move(work)] {
    std::unique_lock lock(mutex_);
    while (!ends_.wait_for(lock, interval, [this] { return is_ending_; })) {
      lock.unlock();
      work();
      lock.lock();
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

}  // namespace llm
