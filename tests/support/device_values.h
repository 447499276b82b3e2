#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor/ops/elementwise.h"
#include "tensor/storage.h"

namespace llm::test {

/// Owned elements where they are wanted.
class Values {
 public:
  Values(const std::vector<float>& values, Device device)
      : n_(static_cast<std::int64_t>(values.size())), memory_(n_ * 4, device) {
    if (n_ == 0) return;
    const Storage pinned = Storage::pinned(n_ * 4);
    std::memcpy(pinned.view(Dtype::f32, {n_}).data(), values.data(), values.size() * 4);
    move(pinned.view(Dtype::f32, {n_}), view());
  }
  MutView view() const { return memory_.view(Dtype::f32, {n_}); }
  std::vector<float> read() const {
    std::vector<float> values(static_cast<std::size_t>(n_));
    if (n_ == 0) return values;
    const Storage pinned = Storage::pinned(n_ * 4);
    move(view(), pinned.view(Dtype::f32, {n_}));
    std::memcpy(values.data(), pinned.view(Dtype::f32, {n_}).data(), values.size() * 4);
    return values;
  }

 private:
  void move(View from, MutView into) const {
    Queue queue(memory_.device());
    copy(queue, from, into);
    queue.finish();
  }
  std::int64_t n_;
  Storage memory_;
};

}  // namespace llm::test
