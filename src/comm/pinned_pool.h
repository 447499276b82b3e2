#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <vector>

#include "tensor/storage.h"

namespace llm {

/// Buffers of pinned host memory that are used again and again: to pin memory costs a millisecond
/// and waits for the device. As many as were in use at once, each the next power of two.
class PinnedPool {
 public:
  Storage take(std::int64_t n_bytes) {
    const std::int64_t size = size_for(n_bytes);
    std::vector<Storage>& free = free_[size];
    if (free.empty()) {
      n_bytes_ += size;
      return Storage::pinned(size);
    }
    Storage buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }
  void give_back(Storage buffer) { free_[buffer.n_bytes()].push_back(std::move(buffer)); }
  /// Of all buffers, in use or not.
  std::int64_t n_bytes() const { return n_bytes_; }

 private:
  static std::int64_t size_for(std::int64_t n_bytes) {
    constexpr std::int64_t least = 4096;
    const auto size = static_cast<std::uint64_t>(std::max(n_bytes, least));
    return static_cast<std::int64_t>(std::bit_ceil(size));
  }

  std::map<std::int64_t, std::vector<Storage>> free_;
  std::int64_t n_bytes_ = 0;
};

}  // namespace llm
