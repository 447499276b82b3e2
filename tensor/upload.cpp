#include "tensor/upload.h"

#include <cstring>

#include "tensor/ops/elementwise.h"

namespace llm {

Upload::Upload(Queue& queue, const View& x) : view_(x) {
  CHECK_CONTRACT(x.device() == Device::cpu, "what is uploaded lies on the CPU");
  if (queue.device() == Device::cpu || x.empty()) return;
  pinned_ = Storage::pinned(x.n_bytes());
  there_ = Storage(x.n_bytes(), queue.device());
  const MutView from = pinned_.view(x.dtype(), x.shape());
  const MutView to = there_.view(x.dtype(), x.shape());
  std::memcpy(from.data(), x.data(), static_cast<std::size_t>(x.n_bytes()));
  copy(queue, from, to);
  view_ = to;
}

}  // namespace llm
