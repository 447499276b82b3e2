#pragma once
#include <cstdint>
#include <vector>

namespace llm {

/// Element `index` of the vector that rank `rank` brings to a sum: a number whose sums round, over
/// eight binary orders of magnitude, so that another order of adding shows.
inline float value_of(int rank, std::int64_t index) {
  auto bits = static_cast<std::uint32_t>(index) * 2654435761U +
              static_cast<std::uint32_t>(rank + 1) * 0x9E3779B9U;
  bits = (bits ^ (bits >> 15)) * 0x85EBCA6BU;
  bits ^= bits >> 13;
  const float unit = static_cast<float>(bits >> 8) * 0x1p-24f - 0.5f;
  return unit * static_cast<float>(1 << (bits & 7));
}

inline std::vector<float> values_of(int rank, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = value_of(rank, i);
  return values;
}

/// The sum over ranks [first, last) as it is defined: halves first, each by the same rule.
inline float tree_sum(int first, int last, std::int64_t index) {
  if (last - first == 1) return value_of(first, index);
  const int middle = first + (last - first) / 2;
  return tree_sum(first, middle, index) + tree_sum(middle, last, index);
}

}  // namespace llm
