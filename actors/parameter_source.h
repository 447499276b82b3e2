#pragma once
#include <cstdint>

#include "src/rt/task.h"

namespace llm {

/// When a layer's parameters can be read.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Returns when what the layer's ops read is that of `step`. One coroutine asks at a time.
  virtual Task<> acquire(std::int64_t step, std::int64_t layer) = 0;
};

}  // namespace llm
