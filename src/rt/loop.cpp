#include "src/rt/loop.h"

#include <time.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdio>

#include <fmt/format.h>
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/rank_log.h"
#include "src/rt/clock.h"

namespace llm {
namespace {

// A turn runs at most this many coroutines before it polls: a chatty actor cannot starve the wire.
constexpr int ready_batch = 64;
constexpr std::int64_t io_interval_ns = 1'000'000;
// Idle: spin while an answer is likely near, then let other ranks on this core run, then sleep.
constexpr std::int64_t spin_ns = 20'000;
constexpr std::int64_t yield_ns = 2'000'000;
constexpr long sleep_ns = 50'000;
// Actors should wait, not work: what takes one so long keeps the rank from everything else.
constexpr std::int64_t traced_run_ns = 50'000;
// A turn takes milliseconds. Where more passes between two of them the process did not run.
constexpr std::int64_t most_turn_ns = 250'000'000;

}  // namespace

struct Loop::Asio {
  boost::asio::io_context io{1};
};

/// A call from another thread: a node of a stack that the loop takes whole.
struct Loop::Foreign {
  std::function<void()> call;
  Foreign* next = nullptr;
};

Loop::Loop() : Loop(Options{}) {}

Loop::Loop(Options options) : options_(std::move(options)) {
  turn_ns_ = last_progress_ns_ = now_ns();
}

Loop::~Loop() {
  drop_actors();  // first: their awaiters unlink themselves from this loop's lists
  Foreign* node = foreign_.exchange(nullptr);
  while (node != nullptr) {
    const std::unique_ptr<Foreign> owned(node);
    node = owned->next;
  }
}

void Loop::drop_actors() {
  {
    const std::lock_guard lock(place_mutex_);
    at_actor_ = nullptr;
  }
  while (!ready_.empty()) ready_.pop();
  actors_.clear();
  n_unfinished_ = 0;
}

void Loop::add_actor(std::string name, bool background, Task<> task) {
  const int id = static_cast<int>(actors_.size());
  actors_.push_back(std::make_unique<Actor>(std::move(name), id, background, std::move(task)));
  Actor& actor = *actors_.back();
  if (trace != nullptr) trace->name_actor(actor.id(), actor.name());
  if (!background) ++n_unfinished_;
  ready(actor.task_.handle(), &actor);
}

void Loop::add_poller(Poller& poller) {
  pollers_.push_back(&poller);
}

void Loop::remove_poller(Poller& poller) {
  {
    const std::lock_guard lock(place_mutex_);
    at_poller_ = nullptr;
  }
  std::erase(pollers_, &poller);
}

void Loop::run() {
  turn_ns_ = now_ns();
  last_progress_ns_ = idle_clock_ns();
  while (n_unfinished_ > 0) {
    if (turn()) {
      last_progress_ns_ = idle_clock_ns();
    } else {
      idle();
    }
  }
}

bool Loop::run_until_idle() {
  while (n_unfinished_ > 0 && turn()) {
  }
  return all_done();
}

bool Loop::turn() {
  const std::int64_t previous_ns = std::exchange(turn_ns_, now_ns());
  if (turn_ns_ - previous_ns > most_turn_ns) skipped_ns_ += turn_ns_ - previous_ns - most_turn_ns;
  n_turns_.store(n_turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  is_discounted_ = false;
  bool progress = run_ready();
  for (std::size_t i = 0; i < pollers_.size(); ++i) progress |= poll(*pollers_[i]);
  progress |= run_foreign();
  if (turn_ns_ - last_io_ns_ >= io_interval_ns) poll_io();
  return (progress && !is_discounted_) || !ready_.empty();
}

bool Loop::poll(Poller& poller) {
  at_poller_.store(&poller, std::memory_order_relaxed);
  place_.store(Place::poller, std::memory_order_relaxed);
  const bool progress = poller.poll();
  place_.store(Place::between, std::memory_order_relaxed);
  return progress;
}

std::string Loop::place() const {
  const std::lock_guard lock(place_mutex_);
  const Actor* const actor = at_actor_.load();
  const Poller* const poller = at_poller_.load();
  switch (place_.load()) {
    case Place::actor:
      return actor != nullptr ? "in actor " + actor->name() : "in an actor that has ended";
    case Place::poller:
      return poller != nullptr ? "in " + poller->doing() : "in a poller that has gone";
    case Place::call:
      return "in a call from another thread, a signal or a timer";
    case Place::between:
      break;
  }
  return "between two turns";
}

bool Loop::run_ready() {
  if (ready_.empty()) return false;
  for (int n = 0; n < ready_batch && !ready_.empty(); ++n) resume(ready_.pop());
  return true;
}

void Loop::resume(Ready next) {
  current_ = next.actor;
  const std::int64_t begin_ns = trace != nullptr ? now_ns() : 0;
  at_actor_.store(next.actor, std::memory_order_relaxed);
  place_.store(Place::actor, std::memory_order_relaxed);
  next.coroutine.resume();
  place_.store(Place::between, std::memory_order_relaxed);
  current_ = nullptr;
  if (trace != nullptr && next.actor != nullptr) trace_run(*next.actor, begin_ns);
  Actor* const actor = next.actor;
  if (actor->done()) {
    if (!actor->background_) --n_unfinished_;
    actor->task_.await_resume();  // the exception it ended with leaves here
  }
}

void Loop::trace_run(const Actor& actor, std::int64_t begin_ns) const {
  const std::int64_t end_ns = now_ns();
  if (end_ns - begin_ns > traced_run_ns) {
    trace->slice(actor.id(), "actor", "run", 0, begin_ns, end_ns);
  }
}

void Loop::post(std::function<void()> call) {
  auto node = std::make_unique<Foreign>();
  node->call = std::move(call);
  node->next = foreign_.load(std::memory_order_relaxed);
  Foreign* const raw = node.release();
  while (!foreign_.compare_exchange_weak(raw->next, raw, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
}

bool Loop::run_foreign() {
  if (foreign_.load(std::memory_order_relaxed) == nullptr) return false;
  Foreign* newest_first = foreign_.exchange(nullptr, std::memory_order_acquire);
  Foreign* oldest_first = nullptr;
  while (newest_first != nullptr) {
    Foreign* const next = newest_first->next;
    newest_first->next = std::exchange(oldest_first, newest_first);
    newest_first = next;
  }
  while (oldest_first != nullptr) {
    const std::unique_ptr<Foreign> node(oldest_first);
    oldest_first = node->next;
    place_.store(Place::call, std::memory_order_relaxed);
    node->call();
    place_.store(Place::between, std::memory_order_relaxed);
  }
  return true;
}

boost::asio::io_context& Loop::io() {
  if (!asio_) asio_ = std::make_unique<Asio>();
  return asio_->io;
}

void Loop::poll_io() {
  last_io_ns_ = turn_ns_;
  if (watch_ != nullptr) watch_->turned();
  if (!asio_) return;
  place_.store(Place::call, std::memory_order_relaxed);
  asio_->io.restart();
  asio_->io.poll();
  place_.store(Place::between, std::memory_order_relaxed);
}

void Loop::idle() {
  const std::int64_t idle_ns = idle_clock_ns() - last_progress_ns_;
  if (idle_ns > spin_ns) {
    // A loop that computes is never here, so the system call costs nothing that matters.
    const timespec nap{0, idle_ns > yield_ns ? sleep_ns : 0};
    idle_ns > yield_ns ? nanosleep(&nap, nullptr) : sched_yield();
  }
  if (idle_ns > yield_ns) give_up_or_warn(static_cast<double>(idle_ns) * 1e-9);
}

void Loop::give_up_or_warn(double idle_seconds) {
  if (watch_ != nullptr) {
    watch_->idle();
  } else if (options_.stall_timeout_seconds > 0 && idle_seconds > options_.stall_timeout_seconds) {
    throw StallError(fmt::format("stalled: nothing moved for {:.0f} s; waits of this rank:\n{}",
                                 idle_seconds, wait_table()));
  }
  if (!stall_warned_ && options_.stall_warning_seconds > 0 &&
      idle_seconds > options_.stall_warning_seconds) {
    stall_warned_ = true;
    const std::string text = fmt::format(
        "warning: nothing moved for {:.0f} s; waits of this rank:\n{}", idle_seconds, wait_table());
    options_.warn ? options_.warn(text) : say_aside(text);
  }
}

std::vector<WaitLine> Loop::waits() const {
  std::vector<WaitLine> lines;
  for (const Wait* wait = waits_; wait != nullptr; wait = wait->next_) {
    const Actor* const actor = wait->actor_;
    lines.push_back({.actor = actor != nullptr ? actor->name() : "?",
                     .background = actor != nullptr && actor->background(),
                     .kind = wait->name_.kind,
                     .key = wait->key_,
                     .peer = wait->name_.peer,
                     .seconds = static_cast<double>(turn_ns_ - wait->since_ns_) * 1e-9});
  }
  std::sort(lines.begin(), lines.end(),
            [](const WaitLine& a, const WaitLine& b) { return a.seconds > b.seconds; });
  return lines;
}

std::string Loop::wait_table() const {
  std::string table;
  for (const WaitLine& wait : waits()) {
    table += fmt::format("  {:<24} waits for {}({}){} since {:.1f} s\n", wait.actor, wait.kind,
                         wait.key, wait.peer.empty() ? "" : " from " + wait.peer, wait.seconds);
  }
  return table.empty() ? "  (no actor waits for a message)\n" : table;
}

Wait::~Wait() {
  if (suspended_) unlink();
}

void Wait::suspend(std::coroutine_handle<> coroutine) {
  CHECK_CONTRACT(!suspended_, "a wait suspends once at a time");
  coroutine_ = coroutine;
  actor_ = loop_.current();
  since_ns_ = loop_.trace != nullptr ? now_ns() : loop_.turn_ns();
  suspended_ = true;
  previous_ = nullptr;
  next_ = std::exchange(loop_.waits_, this);
  if (next_ != nullptr) next_->previous_ = this;
}

void Wait::unlink() {
  (previous_ != nullptr ? previous_->next_ : loop_.waits_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  suspended_ = false;
}

void Wait::trace_end() const {
  Trace& trace = *loop_.trace;
  const Actor* const by = loop_.current();
  const std::int64_t end_ns = now_ns();
  const std::uint64_t message = by == nullptr ? trace.take_arriving() : 0;
  if (message != 0) trace.flow_end(actor_->id(), message, end_ns, true);
  trace.wait(actor_->id(),
             {.kind = name_.kind,
              .peer = name_.peer,
              .key = key_,
              .by = by == nullptr ? Trace::outside : by->id()},
             since_ns_, end_ns);
}

void Wait::wake() {
  CHECK_CONTRACT(suspended_, "only a suspended coroutine is woken");
  unlink();
  if (loop_.trace != nullptr && actor_ != nullptr) {
    trace_end();
  }
  loop_.ready(coroutine_, actor_);
}

}  // namespace llm
