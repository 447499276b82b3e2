#pragma once
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace llm::emulator {

/// A function on a stack of its own, which runs when it is resumed until it pauses or returns.
/// Fibers of one thread. One that is destroyed while it is paused is never resumed: what lies on
/// its stack is not destroyed.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  /// An exception of the body leaves through here.
  void resume();
  bool done() const;
  /// Called in a fiber: goes back to who resumed it.
  static void pause();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llm::emulator
