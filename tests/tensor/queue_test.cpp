#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tensor/queue.h"

using namespace llm;

TEST_CASE("a queue runs its tiles in order, one a call") {
  Queue queue;
  std::vector<int> ran;
  queue.tiles("a", 3, [&](std::int64_t tile) { ran.push_back(static_cast<int>(tile)); });
  queue.work("b", [&] { ran.push_back(10); });
  CHECK(ran.empty());
  CHECK(queue.run_tile());
  CHECK(ran == std::vector<int>{0});
  queue.finish();
  CHECK(ran == std::vector<int>{0, 1, 2, 10});
  CHECK(queue.empty());
  CHECK_FALSE(queue.run_tile());
}

TEST_CASE("an op without tiles leaves the queue empty") {
  Queue queue;
  queue.tiles("nothing", 0, [](std::int64_t) { FAIL("a tile that is not there ran"); });
  CHECK(queue.empty());
}

TEST_CASE("a notification comes after the work before it and may put in more") {
  Queue queue;
  std::string log;
  queue.work("a", [&] { log += "a"; });
  queue.notify([&] {
    log += "!";
    queue.work("c", [&] { log += "c"; });
  });
  queue.work("b", [&] { log += "b"; });
  queue.finish();
  CHECK(log == "a!bc");
}

TEST_CASE("an observer hears each tile under its op's name, and no notification") {
  Queue queue;
  std::vector<std::string> names;
  queue.observe([&](const char* op, std::int64_t begin_ns, std::int64_t end_ns) {
    CHECK(end_ns >= begin_ns);
    names.emplace_back(op);
  });
  queue.tiles("a", 2, [](std::int64_t) {});
  queue.notify([] {});
  queue.work("b", [] {});
  queue.finish();
  CHECK(names == std::vector<std::string>{"a", "a", "b"});
}

TEST_CASE("a tile's exception leaves through run_tile") {
  Queue queue;
  queue.work("bad", [] { throw std::runtime_error("broken"); });
  CHECK_THROWS_WITH(queue.run_tile(), "broken");
}

TEST_CASE("what is dropped never runs") {
  Queue queue;
  queue.work("a", [] { FAIL("it ran"); });
  queue.drop();
  CHECK(queue.empty());
  CHECK_FALSE(queue.run_tile());
}

TEST_CASE("with a pool ops still run one after the other, notifications on the loop's thread") {
  ThreadPool pool(GENERATE(1, 2, 4));
  CAPTURE(pool.n_threads());
  Queue queue(Device::cpu, &pool);
  const std::thread::id here = std::this_thread::get_id();
  constexpr int n_ops = 100;
  std::atomic<int> n_ran{0};
  std::atomic<int> n_out_of_order{0};
  std::vector<int> heard;
  for (int op = 0; op < n_ops; ++op) {
    queue.tiles("shared", 7, [&, op](std::int64_t) {
      const int n = n_ran++;
      n_out_of_order += n < op * 8 || n >= op * 8 + 7;
    });
    queue.work("single", [&, op] {
      n_out_of_order += n_ran++ != op * 8 + 7 || std::this_thread::get_id() != here;
    });
    queue.notify([&] {
      n_out_of_order += std::this_thread::get_id() != here;
      heard.push_back(n_ran);
    });
  }
  queue.finish();
  CHECK(n_out_of_order == 0);
  REQUIRE(heard.size() == n_ops);
  for (int op = 0; op < n_ops; ++op) CHECK(heard[static_cast<std::size_t>(op)] == op * 8 + 8);
}

TEST_CASE("the loop's thread is not held by a tile that another thread runs") {
  ThreadPool pool(2);
  Queue queue(Device::cpu, &pool);
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<bool> elsewhere{false};
  std::atomic<bool> let_go{false};
  queue.tiles("op", 2, [&](std::int64_t) {
    if (std::this_thread::get_id() == here) {
      while (!elsewhere) std::this_thread::yield();  // leave one to the other thread
    } else {
      elsewhere = true;
      while (!let_go) std::this_thread::yield();
    }
  });
  bool after = false;
  queue.work("after", [&] { after = true; });
  for (int i = 0; i < 100; ++i) CHECK(queue.run_tile());
  CHECK_FALSE(after);
  let_go = true;
  queue.finish();
  CHECK(after);
}

TEST_CASE("an observer hears an op that a pool shares once, on the loop's thread") {
  ThreadPool pool(3);
  Queue queue(Device::cpu, &pool);
  const std::thread::id here = std::this_thread::get_id();
  std::vector<std::string> names;
  queue.observe([&](const char* op, std::int64_t begin_ns, std::int64_t end_ns) {
    CHECK(end_ns >= begin_ns);
    CHECK(std::this_thread::get_id() == here);
    names.emplace_back(op);
  });
  queue.tiles("a", 9, [](std::int64_t) {});
  queue.notify([] {});
  queue.work("b", [] {});
  queue.finish();
  CHECK(names == std::vector<std::string>{"a", "b"});
}

TEST_CASE("an exception of another thread's tile leaves through run_tile, and the queue goes on") {
  ThreadPool pool(2);
  Queue queue(Device::cpu, &pool);
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<bool> thrown{false};
  queue.tiles("bad", 2, [&](std::int64_t) {
    if (std::this_thread::get_id() == here) {
      while (!thrown) std::this_thread::yield();
    } else {
      thrown = true;
      throw std::runtime_error("broken");
    }
  });
  int n_after = 0;
  queue.work("after", [&] { ++n_after; });
  CHECK_THROWS_WITH(queue.finish(), "broken");
  CHECK(n_after == 0);
  queue.finish();
  CHECK(n_after == 1);
}

TEST_CASE("a queue that goes away waits for the tiles that other threads run") {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> memory(1000);
    Queue queue(Device::cpu, &pool);
    queue.tiles("op", 1000, [&](std::int64_t tile) { memory[static_cast<std::size_t>(tile)] = 1; });
    queue.run_tile();
  }
  CHECK(pool.done());
}
