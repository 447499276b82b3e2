#pragma once
#include <cstdint>

#include "src/rt/task.h"

namespace llm {

/// When a layer's parameters can be read, and for how long.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Returns when what the layer's ops read is there, as of `step`. One coroutine asks at a time.
  virtual Task<> acquire(std::int64_t step, std::int64_t layer) = 0;
  /// All work that reads what was acquired first of what is not yet released is enqueued on the
  /// compute queue.
  virtual void release(std::int64_t layer) = 0;
  /// Whether they lie elsewhere after each acquire: views of them are good from acquire to release.
  virtual bool moves() const = 0;
};

}  // namespace llm
