#include "src/comm/queue_poller.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "src/base/error.h"
#include "src/rt/event.h"

using namespace llm;

namespace {

const WaitName wait_done{"done"}, wait_never{"never"};

Task<> waits(Event& event) {
  co_await event;
}

}  // namespace

TEST_CASE("a loop waits for another thread's tile, and no longer than its stall timeout") {
  for (const bool ends : {true, false}) {
    std::atomic<bool> elsewhere{false};
    std::atomic<bool> let_go{ends};
    Loop loop(
        {.stall_warning_seconds = 0, .stall_timeout_seconds = ends ? 60.0 : 0.05, .warn = {}});
    ThreadPool pool(2);
    Queue queue(Device::cpu, &pool);
    QueuePoller poller(queue, 1);
    loop.add_poller(poller);
    const std::thread::id here = std::this_thread::get_id();
    queue.tiles("op", 2, [&](std::int64_t) {
      if (std::this_thread::get_id() == here) {
        while (!elsewhere) std::this_thread::yield();  // leave one to the other thread
      } else {
        elsewhere = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        while (!let_go) std::this_thread::yield();
      }
    });
    Event done(loop, wait_done);
    queue.notify([&] { done.set(); });
    loop.spawn("waits", waits(done));
    if (ends) {
      loop.run();
    } else {
      CHECK_THROWS_AS(loop.run(), StallError);
    }
    CHECK(queue.empty() == ends);
    let_go = true;
    loop.drop_actors();
    loop.remove_poller(poller);
  }
}
