#pragma once
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "src/rt/idle_watch.h"
#include "src/rt/ring.h"
#include "src/rt/task.h"
#include "src/rt/trace.h"
#include "src/rt/wait.h"

namespace boost::asio {
class io_context;
}

namespace llm {

/// A named root coroutine of a loop.
class Actor {
 public:
  Actor(std::string name, int id, bool background, Task<> task)
      : name_(std::move(name)), id_(id), background_(background), task_(std::move(task)) {}
  const std::string& name() const { return name_; }
  bool background() const { return background_; }
  int id() const { return id_; }  ///< its place in spawn order: the thread id in traces
  bool done() const { return task_.done(); }

 private:
  friend class Loop;
  std::string name_;
  int id_;
  bool background_;
  Task<> task_;
};

/// Something that makes progress only when asked: a transport, a compute queue.
class Poller {
 public:
  virtual ~Poller() = default;
  /// Does what can be done now, never blocks. True when anything happened, or happens on other
  /// threads and is soon done: the loop then neither sleeps nor counts its turns as a stall.
  virtual bool poll() = 0;
  /// For a report on a loop that is stuck in poll(): what it does. Called from any thread.
  virtual std::string doing() const { return "a poller"; }
};

/// One rank's event loop: runs its actors on one thread, in the order they became ready, and polls
/// transports, compute queues, other threads' calls and Asio (signals, timers) in between.
class Loop {
 public:
  struct Options {
    double stall_warning_seconds = 60;    ///< the wait table is printed once; 0: never
    double stall_timeout_seconds = 1800;  ///< StallError with the wait table; 0: never
    /// Where warnings go; stderr if unset.
    std::function<void(std::string_view)> warn;
  };

  Loop();
  explicit Loop(Options options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Keeps `task` as an actor and starts it on the next turn. Names appear in traces and reports.
  void spawn(std::string name, Task<> task) { add_actor(std::move(name), false, std::move(task)); }
  /// The same for an actor that serves others: run() does not wait for its end.
  void spawn_background(std::string name, Task<> task) {
    add_actor(std::move(name), true, std::move(task));
  }
  /// Destroys all actors' frames, ended or suspended. For whoever owns their inboxes and goes
  /// first.
  void drop_actors();
  /// Polled once a turn, in the order of adding. The poller must outlive its place here.
  void add_poller(Poller& poller);
  void remove_poller(Poller& poller);

  /// Returns when every actor but the background ones has ended. The first exception of an actor or
  /// poller leaves at once. Throws StallError when nothing moved for stall_timeout_seconds.
  void run();
  /// Runs until nothing can go on without a message from outside. True when every actor has ended.
  bool run_until_idle();
  bool all_done() const { return n_unfinished_ == 0; }

  /// Puts a coroutine at the end of the run queue.
  void ready(std::coroutine_handle<> coroutine, Actor* actor) { ready_.push({coroutine, actor}); }
  /// Callable from any thread: `call` runs on the loop's thread, on one of the next turns.
  void post(std::function<void()> call);
  /// co_await loop.yield(): lets everything else that is ready run first.
  auto yield();
  Actor* current() const { return current_; }
  /// Monotonic time of this turn's begin: good enough for "since when", cheap enough for each wait.
  std::int64_t turn_ns() const { return turn_ns_; }

  /// By age, oldest first.
  std::vector<WaitLine> waits() const;
  /// One line a wait: actor, kind, key, peer, seconds.
  std::string wait_table() const;
  /// `watch` (not owned, may be nullptr) decides on stalls in place of stall_timeout_seconds.
  void watch(IdleWatch* watch) { watch_ = watch; }
  /// This turn's begin and the last turn in which something moved, on a clock that stands still
  /// while the loop does not turn: a suspended process has not waited.
  std::int64_t idle_clock_ns() const { return turn_ns_ - skipped_ns_; }
  std::int64_t last_progress_ns() const { return last_progress_ns_; }
  /// What happens in this turn is not progress: a question about a stall, not its end.
  void discount_turn() { is_discounted_ = true; }
  /// Turns so far. Callable from any thread, as place().
  std::uint64_t n_turns() const { return n_turns_.load(std::memory_order_relaxed); }
  /// Where the loop's thread is: "in actor data_feed", "in MPI".
  std::string place() const;
  /// Asio, polled about once a millisecond: signals and timers, never the hot path.
  boost::asio::io_context& io();

  /// Slices and flows go here where it is set (not owned).
  Trace* trace = nullptr;

 private:
  friend class Wait;
  struct Ready {
    std::coroutine_handle<> coroutine;
    Actor* actor;
  };
  struct Asio;
  struct Foreign;
  enum class Place : std::uint8_t { between, actor, poller, call };

  void add_actor(std::string name, bool background, Task<> task);
  bool turn();
  bool run_ready();
  bool run_foreign();
  void poll_io();
  void resume(Ready next);
  void trace_run(const Actor& actor, std::int64_t begin_ns) const;
  bool poll(Poller& poller);
  void idle();
  void give_up_or_warn(double idle_seconds);

  Options options_;
  Ring<Ready> ready_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<Poller*> pollers_;
  int n_unfinished_ = 0;
  Actor* current_ = nullptr;
  Wait* waits_ = nullptr;
  std::int64_t turn_ns_ = 0;
  std::int64_t skipped_ns_ = 0;
  std::int64_t last_progress_ns_ = 0;  // on the idle clock
  bool is_discounted_ = false;
  IdleWatch* watch_ = nullptr;
  // Where the loop is, for other threads. The mutex is held while what they point at goes away.
  mutable std::mutex place_mutex_;
  std::atomic<std::uint64_t> n_turns_{0};
  std::atomic<Place> place_{Place::between};
  std::atomic<const Actor*> at_actor_{nullptr};
  std::atomic<const Poller*> at_poller_{nullptr};
  std::int64_t last_io_ns_ = 0;
  bool stall_warned_ = false;
  std::atomic<Foreign*> foreign_{nullptr};
  std::unique_ptr<Asio> asio_;
};

inline auto Loop::yield() {
  struct Yield {
    explicit Yield(Loop& l) : loop(l) {}
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> coroutine) const {
      loop.ready(coroutine, loop.current());
    }
    void await_resume() const noexcept {}
    Loop& loop;
  };
  return Yield(*this);
}

}  // namespace llm
