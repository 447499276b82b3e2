#pragma once
#include <chrono>
#include <cstdint>

namespace llm {

/// Nanoseconds of the monotonic clock; comparable within one process only.
inline std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace llm
