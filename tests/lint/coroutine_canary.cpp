// States which co_await patterns this compiler breaks. g++ 12 destroys some temporaries of a
// co_await statement twice (STYLE.md, section 7). Each pattern runs in a child process, because a
// double destruction may end it. A pattern that the rules allow must work; what happens to a
// forbidden one is only printed, so that the rules can be relaxed when no supported compiler needs
// them. Stands alone: a few lines of coroutine machinery, nothing of src/rt.
#include <sys/wait.h>
#include <unistd.h>

#include <coroutine>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// Exit statuses of a child; 0 is "fine".
constexpr int wrong_value = 2, destroyed_twice = 3, leaked = 4;

std::set<const void*> alive;

void expect(bool condition) {
  if (!condition) _exit(wrong_value);
}

/// A value that knows whether it is alive, and owns memory, as a message does.
class Tracked {
 public:
  explicit Tracked(int v) : value_(std::make_unique<int>(v)) { alive.insert(this); }
  Tracked(const Tracked& other) : value_(std::make_unique<int>(other.value())) {
    alive.insert(this);
  }
  Tracked(Tracked&& other) noexcept : value_(std::move(other.value_)) { alive.insert(this); }
  Tracked& operator=(const Tracked&) = delete;
  Tracked& operator=(Tracked&&) = delete;
  ~Tracked() {
    if (alive.erase(this) == 0) _exit(destroyed_twice);
  }
  int value() const {
    if (!alive.contains(this)) _exit(destroyed_twice);
    return *value_;
  }

 private:
  std::unique_ptr<int> value_;
};

struct Aggregate {
  Tracked tracked;
  int extra;
};

class Message {
 public:
  Message(Tracked tracked, int extra) : tracked_(std::move(tracked)), extra_(extra) {}
  int sum() const { return tracked_.value() + extra_; }

 private:
  Tracked tracked_;
  int extra_;
};

std::deque<std::coroutine_handle<>> ready;

/// Suspends once; the run queue resumes.
class Turn {
 public:
  Turn() = default;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) const { ready.push_back(coroutine); }
  void await_resume() const noexcept {}
};

/// A lazy coroutine of one int; the awaiting one is resumed through the run queue.
class [[nodiscard]] Task {
 public:
  struct promise_type {
    int value = 0;
    std::exception_ptr error;
    std::coroutine_handle<> waiting;

    struct Finish {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> done) const noexcept {
        if (done.promise().waiting) ready.push_back(done.promise().waiting);
      }
      void await_resume() const noexcept {}
    };
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Finish final_suspend() noexcept { return {}; }
    void return_value(int v) { value = v; }
    void unhandled_exception() { error = std::current_exception(); }
  };

  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) {
    handle_.promise().waiting = waiting;
    ready.push_back(handle_);
  }
  int await_resume() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.promise().value;
  }
  void start() { ready.push_back(handle_); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

void run_queue() {
  while (!ready.empty()) {
    const auto next = ready.front();
    ready.pop_front();
    next.resume();
  }
}

// What the patterns call: each suspends once while it holds its parameter.
Task take(Tracked t) {
  co_await Turn();
  co_return t.value();
}
Task take_reference(const Tracked& t) {
  co_await Turn();
  co_return t.value();
}
Task take_message(Message m) {
  co_await Turn();
  co_return m.sum();
}
Task take_aggregate(Aggregate a) {
  co_await Turn();
  co_return a.tracked.value() + a.extra;
}
Task take_function(std::function<int()> f) {
  co_await Turn();
  co_return f();
}
Task take_string(std::string s) {
  co_await Turn();
  co_return static_cast<int>(s.size());
}
Task take_vector(std::vector<Tracked> v) {
  co_await Turn();
  co_return v.front().value();
}
Task take_wrapped(std::optional<Tracked> o, std::pair<Tracked, int> p, std::tuple<Tracked> t) {
  co_await Turn();
  co_return o->value() + p.first.value() + std::get<0>(t).value();
}
Task fail(Tracked t) {
  co_await Turn();
  throw std::runtime_error(std::to_string(t.value()));
}

class Actor {
 public:
  Task handle(Message m, const Tracked& t) {
    co_await Turn();
    co_return own_.value() + m.sum() + t.value();
  }

 private:
  Tracked own_ = Tracked(1);
};

/// Ready after one turn, holding a value meanwhile.
class Awaiter {
 public:
  explicit Awaiter(Tracked t) : tracked_(std::move(t)) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) const { ready.push_back(coroutine); }
  int await_resume() const { return tracked_.value(); }

 private:
  Tracked tracked_;
};

struct AggregateAwaiter {
  Tracked tracked;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) const { ready.push_back(coroutine); }
  int await_resume() const { return tracked.value(); }
};

Awaiter make_awaiter(int value) {
  return Awaiter(Tracked(value));
}

// The allowed patterns.
Task named_then_moved() {
  Aggregate named{Tracked(5), 1};
  const int got = co_await take_aggregate(std::move(named));
  co_return got - 6;
}
Task named_task() {
  Task named = take(Tracked(5));
  const int got = co_await named;
  co_return got - 5;
}
Task constructed_temporary() {
  const int got = co_await take_message(Message(Tracked(5), 1));
  co_return got - 6;
}
Task temporary_by_value() {
  const int got = co_await take(Tracked(5));
  co_return got - 5;
}
Task temporary_by_reference() {
  const int got = co_await take_reference(Tracked(5));
  co_return got - 5;
}
Task awaiter_with_constructor() {
  const int got = co_await Awaiter(Tracked(5));
  co_return got - 5;
}
Task awaiter_from_a_function() {
  const int got = co_await make_awaiter(5);
  co_return got - 5;
}
Task string_temporaries() {
  const std::string base(100, 'b');
  const int got = co_await take_string(base + "cc");
  co_return got - 102;
}
Task vector_moved_in() {
  std::vector<Tracked> values;
  values.emplace_back(5);
  const int got = co_await take_vector(std::move(values));
  co_return got - 5;
}
Task library_wrappers() {
  const int got = co_await take_wrapped(std::optional<Tracked>(std::in_place, 1),
                                        std::pair<Tracked, int>(Tracked(2), 0),
                                        std::tuple<Tracked>(Tracked(3)));
  co_return got - 6;
}
Task named_function() {
  const auto shared = std::make_shared<int>(5);
  std::function<int()> named = [shared] { return *shared; };
  const int got = co_await take_function(std::move(named));
  expect(shared.use_count() == 1);
  co_return got - 5;
}
Task member_coroutine() {
  Actor actor;
  const int got = co_await actor.handle(Message(Tracked(1), 1), Tracked(2));
  co_return got - 5;
}
Task in_branches_and_loops() {
  int sum = 0;
  for (int i = 0; i < 3; ++i) {
    if (i % 2 == 0) {
      const int got = co_await take(Tracked(i));
      sum += got;
    } else {
      co_await take_reference(Tracked(i));
    }
  }
  co_return sum - 2;
}
Task callee_throws() {
  Tracked local(3);
  bool caught = false;
  try {
    co_await fail(Tracked(5));
  } catch (const std::runtime_error&) {
    caught = true;
  }
  co_return caught ? local.value() - 3 : 1;
}
Task never_resumed() {
  Tracked local(1);
  co_await std::suspend_always();
  co_return local.value();
}

// The forbidden ones. Those that g++ 12 does not compile at all (a braced array or vector) are left
// out.
Task braced_aggregate() {
  const int got = co_await take_aggregate(Aggregate{Tracked(5), 1});
  co_return got - 6;
}
Task designated_aggregate() {
  const int got = co_await take_aggregate({.tracked = Tracked(5), .extra = 1});
  co_return got - 6;
}
Task braced_awaiter() {
  const int got = co_await AggregateAwaiter{Tracked(5)};
  co_return got - 5;
}
Task capturing_lambda() {
  Tracked captured(5);
  const int got = co_await take_function([captured] { return captured.value(); });
  co_return got - 5;
}
Task capturing_lambda_coroutine() {
  Tracked captured(5);
  const int got = co_await [captured]() -> Task {
    co_await Turn();
    co_return captured.value();
  }();
  co_return got - 5;
}
Task aligned_local() {
  alignas(64) volatile float values[16] = {1};
  co_await Turn();
  const auto address = reinterpret_cast<std::uintptr_t>(&values[0]);
  co_return static_cast<int>(address % 64);
}

struct Pattern {
  const char* name;
  bool allowed;
  Task (*body)();
};

const Pattern patterns[] = {
    {"named local, moved in", true, named_then_moved},
    {"named task", true, named_task},
    {"temporary of a class with a constructor", true, constructed_temporary},
    {"temporary by value", true, temporary_by_value},
    {"temporary by const reference", true, temporary_by_reference},
    {"awaiter with a constructor", true, awaiter_with_constructor},
    {"awaiter returned by a function", true, awaiter_from_a_function},
    {"string temporaries", true, string_temporaries},
    {"vector moved in", true, vector_moved_in},
    {"optional, pair and tuple temporaries", true, library_wrappers},
    {"named function object, moved in", true, named_function},
    {"member coroutine", true, member_coroutine},
    {"statements in branches and loops", true, in_branches_and_loops},
    {"the awaited coroutine throws", true, callee_throws},
    {"frame destroyed while suspended", true, never_resumed},
    {"braced aggregate argument", false, braced_aggregate},
    {"designated braced argument", false, designated_aggregate},
    {"braced aggregate awaiter", false, braced_awaiter},
    {"capturing lambda argument", false, capturing_lambda},
    {"capturing lambda coroutine", false, capturing_lambda_coroutine},
    {"64-byte aligned local", false, aligned_local},
};

/// Runs one pattern to its end, or as far as it gets, and destroys it. Does not return.
void run_in_child(const Pattern& pattern) {
  {
    // Several heap shapes, since an over-aligned frame may be aligned by luck.
    std::vector<std::unique_ptr<char[]>> shapes;
    for (int i = 1; i <= 8; ++i) {
      shapes.push_back(std::make_unique<char[]>(static_cast<std::size_t>(16 * i)));
      Task task = pattern.body();
      task.start();
      run_queue();
      expect(task.await_resume() == 0);
    }
  }
  _exit(alive.empty() ? 0 : leaked);
}

const char* describe(int status) {
  if (WIFSIGNALED(status)) return "BROKEN: ended by a signal";
  switch (WEXITSTATUS(status)) {
    case 0:
      return "works";
    case wrong_value:
      return "BROKEN: wrong value";
    case destroyed_twice:
      return "BROKEN: destroyed twice";
    case leaked:
      return "BROKEN: never destroyed";
    default:
      return "BROKEN: stopped by a sanitizer";
  }
}

}  // namespace

int main() {
  int n_wrong = 0;
  for (const Pattern& pattern : patterns) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      // What a sanitizer or the allocator says about a forbidden pattern is expected.
      if (!pattern.allowed && std::freopen("/dev/null", "w", stderr) == nullptr) _exit(wrong_value);
      run_in_child(pattern);
    }
    int status = -1;
    waitpid(child, &status, 0);
    std::printf("%-9s  %-40s  %s\n", pattern.allowed ? "allowed" : "forbidden", pattern.name,
                describe(status));
    n_wrong += pattern.allowed && status != 0;
  }
  if (n_wrong > 0)
    std::printf("%d allowed patterns are broken: STYLE.md section 7 must forbid them\n", n_wrong);
  return n_wrong > 0;
}
