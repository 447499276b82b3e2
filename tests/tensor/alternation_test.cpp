#include "tensor/alternation.h"

#include <catch2/catch.hpp>
#include <string>

using namespace llm;

namespace {

/// Two lanes that log what runs.
struct Log {
  void work(std::size_t lane, const std::string& name) {
    alternation.lane(lane).work("work", [this, name] { text += name + " "; });
  }
  /// A wait that notes where it was passed, and is open at once.
  void wait(std::size_t lane, const std::string& name) {
    alternation.lane(lane).wait([this, name] {
      text += "(" + name + ") ";
      return true;
    });
  }
  std::string run() {
    queue.finish();
    return std::exchange(text, "");
  }
  Queue queue;
  Alternation alternation{queue, {" first", " second"}};
  std::string text;
};

}  // namespace

TEST_CASE("lanes take turns where they wait, across rounds") {
  Log log;
  for (const std::string round : {"1", "2"}) {
    for (const std::size_t lane : {0, 1}) {
      const std::string name = (lane == 0 ? "a" : "b") + round;
      log.work(lane, name);
      log.wait(lane, name);
      log.work(lane, name + "'");
    }
    log.alternation.end_round();
  }
  log.alternation.finish();
  CHECK(log.run() == "a1 b1 (a1) a1' a2 (b1) b1' b2 (a2) a2' (b2) b2' ");
  CHECK(log.alternation.lane(0).empty());
}

TEST_CASE("work is held back for a round at most, whoever waits more often") {
  Log log;
  log.work(0, "a1");
  for (const std::string name : {"b1", "b2", "b3"}) {
    log.work(1, name);
    log.wait(1, name);
  }
  log.alternation.end_round();
  CHECK(log.run() == "a1 ");  // its turn goes on in the next round
  log.work(0, "a2");
  log.work(1, "b4");
  log.alternation.end_round();
  CHECK(log.run() == "a2 b1 (b1) b2 (b2) b3 (b3) b4 ");
  log.work(1, "b5");
  log.alternation.finish();
  CHECK(log.run() == "b5 ");
}

TEST_CASE("the first lane begins again after the end") {
  Log log;
  log.work(0, "a");
  log.wait(0, "a");
  log.work(1, "b");
  log.alternation.finish();
  log.work(0, "c");
  log.work(1, "d");
  log.alternation.finish();
  CHECK(log.run() == "a b (a) c d ");
}

TEST_CASE("an op is told to the observer of its lane, wherever it runs") {
  Log log;
  std::string told;
  log.queue.observe([&](const char*, std::int64_t, std::int64_t) { told += "queue "; });
  for (const std::size_t lane : {0, 1}) {
    Queue& queue = log.alternation.lane(lane);
    queue.observe(
        [&](const char*, std::int64_t, std::int64_t) { told += queue.name() + std::string(" "); });
    log.work(lane, "x");
  }
  log.alternation.finish();
  log.queue.work("y", [] {});
  log.queue.finish();
  CHECK(told == " first  second queue ");
}
