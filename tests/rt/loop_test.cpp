#include "src/rt/loop.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/rt/event.h"
#include "tests/rt/actors_of_tests.h"

using namespace llm;

namespace {

const WaitName wait_done{"done"};

Task<> counts(Loop& loop, int id, int n, std::vector<int>& order) {
  for (int i = 0; i < n; ++i) {
    order.push_back(id);
    co_await loop.yield();
  }
}

Task<> chatters(Loop& loop, const bool& stop, long& n_turns) {
  while (!stop) {
    ++n_turns;
    co_await loop.yield();
  }
}

Task<> waits(Event& event, std::string& log, char mark) {
  co_await event;
  log += mark;
}

Task<> holds(std::shared_ptr<int> held, Inbox<int>& inbox, std::int64_t key) {
  const int message = co_await inbox.take(key);
  *held = message;
}

class CountingPoller : public Poller {
 public:
  explicit CountingPoller(bool& stop) : stop_(stop) {}
  bool poll() override {
    stop_ = ++n_polls_ >= 100;
    return false;
  }
  int n_polls() const { return n_polls_; }

 private:
  bool& stop_;
  int n_polls_ = 0;
};

class FailingPoller : public Poller {
 public:
  bool poll() override { throw std::runtime_error("of the poller"); }
};

}  // namespace

TEST_CASE("yield lets everything else that is ready run first") {
  Loop loop;
  std::vector<int> order;
  for (int id = 0; id < 3; ++id) loop.spawn("counts", counts(loop, id, 3, order));
  loop.run();
  CHECK(order == std::vector{0, 1, 2, 0, 1, 2, 0, 1, 2});
}

TEST_CASE(
    "an actor that is always ready starves neither pollers nor other threads' calls nor Asio") {
  Loop loop;
  bool stop = false;
  long n_turns = 0;
  CountingPoller poller(stop);
  loop.add_poller(poller);
  loop.spawn("chatters", chatters(loop, stop, n_turns));
  bool posted = false;
  bool by_asio = false;
  loop.post([&posted] { posted = true; });
  boost::asio::post(loop.io(), [&by_asio] { by_asio = true; });
  loop.run();
  CHECK(poller.n_polls() >= 100);
  CHECK(n_turns <= 64 * poller.n_polls());
  CHECK(posted);
  CHECK(by_asio);
  loop.remove_poller(poller);
}

TEST_CASE("an event may be set before or after it is waited for, and may be set once") {
  Loop loop;
  Event early(loop, wait_done);
  Event late(loop, wait_done);
  std::string log;
  early.set();
  loop.spawn("early", waits(early, log, 'e'));
  loop.spawn("late", waits(late, log, 'l'));
  CHECK_FALSE(loop.run_until_idle());
  CHECK(log == "e");
  late.set();
  loop.run();
  CHECK(log == "el");
  CHECK_THROWS_AS(late.set(), ContractBroken);
}

TEST_CASE("calls from four threads all run on the loop's thread, each thread's in order") {
  Loop loop;
  constexpr int n_threads = 4;
  constexpr int n_calls = 5000;
  std::vector<std::vector<int>> calls(n_threads);
  Event all(loop, wait_done);
  int n_left = n_threads * n_calls;
  bool on_loop_thread = true;
  const std::thread::id here = std::this_thread::get_id();
  std::string log;
  loop.spawn("waits", waits(all, log, 'a'));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < n_threads; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < n_calls; ++n) {
        loop.post([&, t, n] {
          calls[t].push_back(n);
          on_loop_thread = on_loop_thread && std::this_thread::get_id() == here;
          if (--n_left == 0) all.set();
        });
      }
    });
  }
  loop.run();
  for (std::thread& thread : threads) thread.join();
  CHECK(on_loop_thread);
  for (const std::vector<int>& of_one : calls) {
    REQUIRE(of_one.size() == n_calls);
    for (int n = 0; n < n_calls; ++n) REQUIRE(of_one[static_cast<std::size_t>(n)] == n);
  }
}

TEST_CASE("a stall names actor, kind, key and peer of every wait, oldest first") {
  Loop loop(impatient());
  Inbox<int> activations(loop, WaitName("activation", "stage 0"));
  const WaitName transfer("transfer");
  Event done(loop, transfer, 5);
  std::vector<int> taken;
  std::string log;
  loop.spawn("stage 1", take_keys(activations, {42}, taken));
  loop.spawn("reducer 3", waits(done, log, 'd'));
  std::string message;
  try {
    loop.run();
  } catch (const StallError& error) {
    message = error.what();
  }
  INFO(message);
  CHECK_THAT(message, Catch::Contains("stalled"));
  CHECK_THAT(message, Catch::Contains("stage 1") &&
                          Catch::Contains("waits for activation(42) from stage 0 since"));
  CHECK_THAT(message,
             Catch::Contains("reducer 3") && Catch::Contains("waits for transfer(5) since"));
}

TEST_CASE("a long wait is a warning once, and no error before the timeout") {
  Loop::Options options;
  options.stall_warning_seconds = 0.02;
  options.stall_timeout_seconds = 0.2;
  std::vector<std::string> warnings;
  options.warn = [&warnings](std::string_view text) { warnings.emplace_back(text); };
  Loop loop(options);
  Inbox<int> inbox(loop, WaitName("grads", "rank 3"));
  std::vector<int> taken;
  loop.spawn("waiter", take_keys(inbox, {1}, taken));
  CHECK_THROWS_AS(loop.run(), StallError);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings.front(),
             Catch::Contains("warning") && Catch::Contains("grads(1) from rank 3"));
}

TEST_CASE("an exception of a poller or of a posted call leaves run()") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("never"));
  std::vector<int> taken;
  loop.spawn("waiter", take_keys(inbox, {1}, taken));
  SECTION("poller") {
    FailingPoller poller;
    loop.add_poller(poller);
    CHECK_THROWS_WITH(loop.run(), "of the poller");
  }
  SECTION("posted call") {
    loop.post([] { throw std::runtime_error("of the call"); });
    CHECK_THROWS_WITH(loop.run(), "of the call");
  }
}

TEST_CASE("a loop that ends with suspended actors destroys their frames, inboxes gone or not") {
  const auto held = std::make_shared<int>(0);
  {
    // As after an exception: what was made last goes first, and the loop's frames go last.
    Loop loop;
    Inbox<int> inbox(loop, WaitName("never"));
    for (int key = 0; key < 5; ++key) loop.spawn("holder", holds(held, inbox, key));
    CHECK_FALSE(loop.run_until_idle());
    CHECK(held.use_count() == 6);
    inbox.put(3, 1);
    CHECK_FALSE(loop.run_until_idle());
    CHECK(*held == 1);
  }
  CHECK(held.use_count() == 1);
}

TEST_CASE("calls that were posted and never ran are freed with the loop") {
  const auto held = std::make_shared<int>(0);
  {
    Loop loop;
    loop.post([held] {});
    CHECK(held.use_count() == 2);
  }
  CHECK(held.use_count() == 1);
}
