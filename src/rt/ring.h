#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace llm {

/// A growing ring buffer: push at the back, pop at the front, no allocation in steady state.
template <typename T>
class Ring {
 public:
  bool empty() const { return front_ == back_; }
  std::size_t size() const { return back_ - front_; }
  void push(T value) {
    if (size() == slots_.size()) grow();
    slots_[back_++ & (slots_.size() - 1)] = std::move(value);
  }
  T pop() { return std::move(slots_[front_++ & (slots_.size() - 1)]); }

 private:
  void grow() {
    std::vector<T> larger(slots_.size() * 2);  // sizes stay powers of two: the mask needs it
    const std::size_t n = size();
    for (std::size_t i = 0; i < n; ++i) {
      larger[i] = std::move(slots_[(front_ + i) & (slots_.size() - 1)]);
    }
    slots_ = std::move(larger);
    front_ = 0;
    back_ = n;
  }
  std::vector<T> slots_ = std::vector<T>(64);
  std::size_t front_ = 0;
  std::size_t back_ = 0;
};

}  // namespace llm
