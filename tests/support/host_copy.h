#pragma once
#include <cstring>

#include "tensor/ops/elementwise.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// A tensor's elements on the CPU, wherever it lies.
class HostCopy {
 public:
  explicit HostCopy(const View& x) : memory_(Storage::pinned(x.n_bytes())) {
    view_ = memory_.view(x.dtype(), x.shape());
    Queue queue(x.device());
    copy(queue, x, view_);
    queue.finish();
  }
  View view() const { return view_; }
  MutView view() { return view_; }
  /// Puts the elements where they came from, or elsewhere.
  void write_to(const MutView& y) const {
    Queue queue(y.device());
    copy(queue, view_, y);
    queue.finish();
  }

 private:
  Storage memory_;
  MutView view_;
};

}  // namespace llm
