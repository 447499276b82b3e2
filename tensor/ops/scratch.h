#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace llm {

/// What an op holds beside the views it was given: --plan counts it by linear_scratch and
/// attention_scratch, and what is really held is counted here.
struct OpScratch {
  std::int64_t shared_bytes = 0;  ///< while the op is in the queue
  std::int64_t thread_bytes = 0;  ///< each thread keeps the most that any call took
};

/// Bytes held now, and the most that were at one time; without what oneDNN holds during a call.
std::int64_t op_scratch_bytes();
std::int64_t op_scratch_peak_bytes();
/// The peak is counted from now on.
void restart_op_scratch_peak();
void count_op_scratch(std::int64_t n_bytes);

/// Counts, and leaves elements as they are: what is in scratch is overwritten before it is read.
template <typename T>
struct ScratchAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = ScratchAllocator<U>;
  };
  T* allocate(std::size_t n) {
    T* memory = std::allocator<T>::allocate(n);
    count_op_scratch(static_cast<std::int64_t>(n * sizeof(T)));
    return memory;
  }
  void deallocate(T* memory, std::size_t n) {
    count_op_scratch(-static_cast<std::int64_t>(n * sizeof(T)));
    std::allocator<T>::deallocate(memory, n);
  }
  template <typename U>
  void construct(U* element) {
    ::new (static_cast<void*>(element)) U;
  }
};

template <typename T>
using Scratch = std::vector<T, ScratchAllocator<T>>;

/// Room for n elements; what was there may be lost.
template <typename T>
T* at_least(Scratch<T>& scratch, std::int64_t n) {
  if (scratch.size() < static_cast<std::size_t>(n)) {
    scratch = Scratch<T>();
    scratch.resize(static_cast<std::size_t>(n));
  }
  return scratch.data();
}

}  // namespace llm
