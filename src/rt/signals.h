#pragma once
#include <memory>

namespace llm {

class Loop;

/// Notes SIGUSR1 from the time that a process starts until there is a loop. One at a time, on the
/// thread that computes. SIGTERM ends the process meanwhile: it is also what a launcher sends after
/// the failure of another rank, which must not read as a wish.
class EarlyStopSignals {
 public:
  EarlyStopSignals();
  ~EarlyStopSignals();
  EarlyStopSignals(const EarlyStopSignals&) = delete;
  EarlyStopSignals& operator=(const EarlyStopSignals&) = delete;
  /// From any thread.
  static bool requested();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Notes SIGUSR1 and SIGTERM while it lives, by Asio on the loop's thread: the run asks once a step
/// and stops where all ranks agree to. Takes over what EarlyStopSignals has noted.
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
