#pragma once
#include <string>

#include "src/rt/loop.h"
#include "tensor/queue.h"

namespace llm {

/// Runs a compute queue's tiles from a loop: up to `tiles_per_poll` a turn, so that messages move
/// in between. One of a few ms for the model, many for short sums that messages wait for. That a
/// pool's other threads still run the last tiles of an op is no progress: they may never end.
class QueuePoller : public Poller {
 public:
  QueuePoller(Queue& queue, int tiles_per_poll) : queue_(queue), tiles_per_poll_(tiles_per_poll) {}
  bool poll() override {
    int n = 0;
    while (n < tiles_per_poll_ && queue_.run_tile() && !queue_.waits_for_threads()) ++n;
    return n > 0;
  }
  std::string doing() const override {
    const char* const op = queue_.current_op();
    return op != nullptr ? std::string("op ") + op : "a queue of ops";
  }

 private:
  Queue& queue_;
  int tiles_per_poll_;
};

}  // namespace llm
