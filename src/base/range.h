#pragma once
#include <cstdint>

namespace llm {

/// The half-open range [begin, end) of element or sample indices.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

}  // namespace llm
