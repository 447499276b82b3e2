#pragma once
#include <coroutine>
#include <cstdint>
#include <string>

namespace llm {

class Actor;
class Loop;

/// What a wait is called in a stall report: the kind of message, and who should send it.
struct WaitName {
  WaitName(std::string kind_, std::string peer_ = "")
      : kind(std::move(kind_)), peer(std::move(peer_)) {}
  std::string kind;
  std::string peer;
};

/// A suspended coroutine, its actor, and what it waits for. Lives in the awaiter's frame; linked
/// into the loop's list from `suspend` until `wake`, so that a stalled run can print who waits for
/// what.
class Wait {
 public:
  Wait(Loop& loop, const WaitName& name, std::int64_t key) : loop_(loop), name_(name), key_(key) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait();

  /// Called by await_suspend: notes the coroutine and the running actor.
  void suspend(std::coroutine_handle<> coroutine);
  /// Puts the coroutine at the end of the loop's run queue; it is never resumed on the caller's
  /// stack.
  void wake();
  bool suspended() const { return suspended_; }
  std::int64_t key() const { return key_; }
  const WaitName& name() const { return name_; }
  Loop& loop() const { return loop_; }
  const Actor* actor() const { return actor_; }
  std::int64_t since_ns() const { return since_ns_; }

 private:
  friend class Loop;
  void unlink();
  void trace_end() const;

  Loop& loop_;
  const WaitName& name_;
  std::int64_t key_;
  std::coroutine_handle<> coroutine_;
  Actor* actor_ = nullptr;
  std::int64_t since_ns_ = 0;
  Wait* previous_ = nullptr;
  Wait* next_ = nullptr;
  bool suspended_ = false;
};

}  // namespace llm
