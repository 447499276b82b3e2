#pragma once
#include <memory>

namespace llm {

class Loop;

/// Notes SIGUSR1 and SIGTERM while it lives, by Asio on the loop's thread: the run asks once a step
/// and stops where all ranks agree to.
class StopSignals {
 public:
  explicit StopSignals(Loop& loop);
  ~StopSignals();
  bool requested() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llm
