#pragma once
#include <coroutine>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/rt/loop.h"

namespace llm {

/// Messages of one kind for one actor, taken by key in any order: what arrives early is kept, what
/// is asked for early is waited for. A key is a microbatch, bucket or step. Several coroutines may
/// wait, each for its own key. Bounded: more than `capacity` kept messages are a bug in the plan.
template <typename Message>
class Inbox {
 public:
  Inbox(Loop& loop, WaitName name, std::size_t capacity = 1024)
      : loop_(loop), name_(std::move(name)), capacity_(capacity) {}
  /// May end before the loop whose coroutines wait here; they are then never woken.
  ~Inbox() {
    for (Take* taker : takers_) taker->inbox_ = nullptr;
  }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  /// A message arrives once: a second one with the same key before the first is taken is a bug.
  void put(std::int64_t key, Message message) {
    for (std::size_t i = 0; i < takers_.size(); ++i) {
      if (takers_[i]->wait_.key() != key) continue;
      Take* const taker = takers_[i];
      takers_.erase(takers_.begin() + static_cast<std::ptrdiff_t>(i));
      taker->message_.emplace(std::move(message));
      taker->wait_.wake();
      return;
    }
    for (const Kept& kept : kept_) CHECK_CONTRACT(kept.key != key, duplicate(key));
    CHECK_CONTRACT(kept_.size() < capacity_, "inbox '" + name_.kind + "' keeps at most " +
                                                 std::to_string(capacity_) + " messages");
    kept_.push_back(Kept(key, std::move(message)));
  }

  class Take {
   public:
    Take(Inbox& inbox, std::int64_t key) : inbox_(&inbox), wait_(inbox.loop_, inbox.name_, key) {}
    ~Take() {
      if (wait_.suspended() && inbox_ != nullptr) std::erase(inbox_->takers_, this);
    }
    bool await_ready() const {
      for (const Kept& kept : inbox_->kept_) {
        if (kept.key == wait_.key()) return true;
      }
      return false;
    }
    void await_suspend(std::coroutine_handle<> coroutine) {
      for (const Take* other : inbox_->takers_) {
        CHECK_CONTRACT(other->wait_.key() != wait_.key(), "one coroutine waits for a message");
      }
      inbox_->takers_.push_back(this);
      wait_.suspend(coroutine);
    }
    Message await_resume() {
      if (message_) return std::move(*message_);
      return inbox_->extract(wait_.key());
    }

   private:
    friend class Inbox;
    Inbox* inbox_;
    Wait wait_;
    std::optional<Message> message_;
  };
  /// co_await inbox.take(key): the message with `key`, as soon as it is here.
  Take take(std::int64_t key) { return Take(*this, key); }

  std::size_t n_kept() const { return kept_.size(); }
  const WaitName& name() const { return name_; }

 private:
  struct Kept {
    Kept(std::int64_t k, Message m) : key(k), message(std::move(m)) {}
    std::int64_t key;
    Message message;
  };
  std::string duplicate(std::int64_t key) const {
    return "a message arrives once: " + name_.kind + "(" + std::to_string(key) + ")";
  }
  Message extract(std::int64_t key) {
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i].key != key) continue;
      Message message = std::move(kept_[i].message);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      return message;
    }
    CHECK_CONTRACT(false, "a kept message is found");
    std::abort();  // not reached
  }

  Loop& loop_;
  WaitName name_;
  std::size_t capacity_;
  std::vector<Kept> kept_;
  std::vector<Take*> takers_;
};

}  // namespace llm
