#pragma once
#include "tensor/queue.h"
#include "tensor/storage.h"
#include "tensor/view.h"

namespace llm {

/// Elements of the CPU where a queue's ops read them: in place on the CPU, else a copy on the
/// device, which what is put into the queue after this reads. It lives until the queue has passed
/// those ops.
class Upload {
 public:
  /// On the CPU the elements stay as they are meanwhile; else they may change once this returns.
  Upload(Queue& queue, const View& x);
  View view() const { return view_; }
  /// The copy is done: gives back the memory that it was made from.
  void landed() { pinned_ = Storage(); }

 private:
  Storage pinned_;
  Storage there_;
  View view_;
};

}  // namespace llm
