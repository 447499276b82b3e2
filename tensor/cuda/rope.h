#pragma once
#include <cmath>
#include <cstdint>

#include "tensor/cuda/launch.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {

/// Turns elements i and i + half of a head at a position, for half of head_dim elements. Angles are
/// computed in f64, as the CPU's table is; direction -1 turns back.
template <typename T>
__device__ void turn_pair(T* head, std::int64_t i, std::int64_t half, float theta,
                          std::int64_t position, float direction) {
  const double angle =
      static_cast<double>(position) *
      pow(static_cast<double>(theta), -static_cast<double>(i) / static_cast<double>(half));
  const auto c = static_cast<float>(cos(angle));
  const float s = direction * static_cast<float>(sin(angle));
  const float a = to_float(head[i]);
  const float b = to_float(head[i + half]);
  head[i] = round_to<T>(a * c - b * s);
  head[i + half] = round_to<T>(b * c + a * s);
}

}  // namespace llm::cuda
