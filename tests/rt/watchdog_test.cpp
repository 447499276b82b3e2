#include "src/rt/watchdog.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "src/rt/inbox.h"

using namespace llm;

namespace {

class BlockedPoller : public Poller {
 public:
  explicit BlockedPoller(const std::atomic<bool>& goes_on) : goes_on_(goes_on) {}
  bool poll() override {
    while (!goes_on_) std::this_thread::yield();
    return false;
  }
  std::string doing() const override { return "a wire"; }

 private:
  const std::atomic<bool>& goes_on_;
};

Task<> blocks(const std::atomic<bool>& goes_on) {
  while (!goes_on) std::this_thread::yield();
  co_return;
}

Task<> sleeps(Loop& loop, int n_turns) {
  for (int i = 0; i < n_turns; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    co_await loop.yield();
  }
}

/// What a watchdog says of the place of a loop that goes on only once it has spoken.
std::string place_of_stuck(Loop& loop, std::atomic<bool>& goes_on) {
  std::string place;
  const Watchdog watchdog(loop, 0.05, [&](double) {
    if (!goes_on) place = loop.place();
    goes_on = true;
  });
  loop.run();
  return place;
}

}  // namespace

TEST_CASE("a loop that stands in an actor or a poller is found, with the place") {
  std::atomic<bool> goes_on = false;
  Loop loop;
  SECTION("actor") {
    loop.spawn("reader", blocks(goes_on));
    CHECK(place_of_stuck(loop, goes_on) == "in actor reader");
  }
  SECTION("poller") {
    BlockedPoller poller(goes_on);
    loop.add_poller(poller);
    loop.spawn("reader", sleeps(loop, 2));
    CHECK(place_of_stuck(loop, goes_on) == "in a wire");
    loop.remove_poller(poller);
  }
}

TEST_CASE("work that takes too long on a run's way out is left alone") {
  const auto is_begun = std::make_shared<std::atomic<bool>>(false);
  const auto may_end = std::make_shared<std::atomic<bool>>(false);
  CHECK_FALSE(run_at_most(0.01, [is_begun, may_end] {
    *is_begun = true;
    while (!*may_end) std::this_thread::yield();
  }));
  *may_end = true;
  CHECK(run_at_most(60, [] {}));
}
