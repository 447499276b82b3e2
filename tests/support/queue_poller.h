#pragma once
#include "src/rt/loop.h"
#include "tensor/queue.h"

namespace llm {

/// Runs a compute queue's tiles on a loop, one a turn. Both outlive it.
class LoopQueue : public Poller {
 public:
  LoopQueue(Loop& loop, Queue& queue) : loop_(loop), queue_(queue) { loop_.add_poller(*this); }
  ~LoopQueue() override { loop_.remove_poller(*this); }
  LoopQueue(const LoopQueue&) = delete;
  LoopQueue& operator=(const LoopQueue&) = delete;
  bool poll() override { return queue_.run_tile(); }

 private:
  Loop& loop_;
  Queue& queue_;
};

}  // namespace llm
