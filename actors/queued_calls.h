#pragma once
#include <cstdint>

#include "actors/messages.h"
#include "src/rt/inbox.h"
#include "src/rt/loop.h"
#include "src/rt/task.h"
#include "tensor/queue.h"

namespace llm {

/// What a queue of ops asks the ranks of a group to do together: calls are carried out one after
/// the other in the order in which they were enqueued, which is the same on every rank. The queue
/// goes on when its call is done.
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
  /// Puts a call at the queue's end. Calls are numbered from 0.
  void enqueue(Queue& queue);
  std::int64_t n_enqueued() const { return n_enqueued_; }
  virtual Task<> carry_out(std::int64_t call) = 0;

  Loop& loop_;

 private:
  const char* const kind_;
  const char* const name_;
  Inbox<Ready> reached_;  // by call: the queue has come to it
  std::int64_t n_enqueued_ = 0;
  std::int64_t n_done_ = 0;
};

}  // namespace llm
