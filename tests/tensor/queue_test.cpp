#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
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
