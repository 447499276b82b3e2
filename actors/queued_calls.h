#pragma once
#include <cstdint>
#include <functional>

#include "src/rt/inbox.h"
#include "src/rt/loop.h"
#include "src/rt/task.h"
#include "tensor/queue.h"

namespace llm {

/// What a queue of ops asks the ranks of a group to do together: calls are carried out one after
/// the other in the order in which the queue comes to them, which is the same on every rank. The
/// queue goes on when its call is done.
class QueuedCalls {
 public:
  virtual ~QueuedCalls() = default;
  QueuedCalls(const QueuedCalls&) = delete;
  QueuedCalls& operator=(const QueuedCalls&) = delete;
  /// Never ends: runs in the background.
  Task<> run();

 protected:
  /// `wait` is for a call; a trace shows each one as `name`, of kind `kind`. Both outlive this.
  QueuedCalls(Loop& loop, WaitName wait, const char* kind, const char* name);
  /// Puts a call at the queue's end. Where it is reached it gets the next number, from 0 on, which
  /// `reached` is told before it is carried out.
  void enqueue(Queue& queue, std::function<void(std::int64_t call)> reached);
  virtual Task<> carry_out(std::int64_t call) = 0;

  Loop& loop_;

 private:
  /// The queue has come to a call.
  struct Reached {
    explicit Reached(const char* lane_) : lane(lane_) {}
    const char* lane;  // the name of the queue that it was put into
  };
  const char* const kind_;
  const char* const name_;
  Inbox<Reached> reached_;  // by call
  std::int64_t n_reached_ = 0;
  std::int64_t n_done_ = 0;
};

}  // namespace llm
