#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llm {

/// One suspended coroutine, as it stood when it was asked for.
struct WaitLine {
  std::string actor;
  bool background = false;  ///< of a service: it may wait for what nobody owes it
  std::string kind;
  std::int64_t key = 0;
  std::string peer;
  double seconds = 0;  ///< since when
};

/// Who decides what a loop without progress means, where the loop's own timeout is not enough
/// because other ranks may well progress. Called on the loop's thread.
class IdleWatch {
 public:
  virtual ~IdleWatch() = default;
  /// A turn in which nothing moved, while nothing has moved for a while. May throw.
  virtual void idle() = 0;
  /// About once a millisecond while the loop turns, whether anything moves or not.
  virtual void turned() = 0;
};

}  // namespace llm
