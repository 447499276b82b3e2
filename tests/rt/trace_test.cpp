#include "src/rt/trace.h"

#include <unistd.h>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/rt/event.h"
#include "tests/rt/actors_of_tests.h"

using namespace llm;

namespace {

/// A file that is gone with the test.
struct TemporaryFile {
  TemporaryFile()
      : path(std::filesystem::temp_directory_path() /
             ("llm-trace-test-" + std::to_string(getpid()) + ".json")) {}
  ~TemporaryFile() { std::filesystem::remove(path); }
  nlohmann::json read() const {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }
  std::filesystem::path path;
};

std::vector<nlohmann::json> events_of(const nlohmann::json& trace, const std::string& phase) {
  std::vector<nlohmann::json> events;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

Task<> waits(Event& event) {
  co_await event;
}

Task<> puts(Inbox<int>& inbox, std::int64_t key) {
  inbox.put(key, 1);
  co_return;
}

}  // namespace

TEST_CASE("a trace is JSON with named rows, slices in time order and both ends of a flow") {
  TemporaryFile file;
  Trace trace(3, 1000);
  trace.name_actor(0, "stage \"0\" \\ 1");
  const int row = trace.add_row("compute");
  trace.slice(0, "wait", "activation", 7, 5000, 9000);
  trace.slice(row, "compute", "linear", 1, 2000, 4500);
  trace.flow_begin(0, 0xABCDEF0123456789, 6000);
  trace.flow_end(row, 0xABCDEF0123456789, 4000);
  trace.write(file.path);
  const nlohmann::json read = file.read();
  const auto names = events_of(read, "M");
  REQUIRE(names.size() == 3);
  CHECK(names[0]["args"]["name"] == "rank 3");
  CHECK(names[1]["args"]["name"] == "stage \"0\" \\ 1");
  CHECK(names[2]["tid"] == row);
  const auto slices = events_of(read, "X");
  REQUIRE(slices.size() == 2);
  CHECK(slices[0]["name"] == "linear");
  CHECK(slices[0]["cat"] == "compute");
  CHECK(slices[0]["ts"] == 1.0);
  CHECK(slices[0]["dur"] == 2.5);
  CHECK(slices[1]["args"]["key"] == 7);
  CHECK(slices[1]["pid"] == 3);
  REQUIRE(events_of(read, "s").size() == 1);
  REQUIRE(events_of(read, "f").size() == 1);
  CHECK(events_of(read, "s")[0]["id"] == "abcdef0123456789");
  CHECK(events_of(read, "f")[0]["id"] == "abcdef0123456789");
  CHECK(events_of(read, "f")[0]["bp"] == "e");
}

TEST_CASE("a loop's waits become slices of their actor, named by kind and key") {
  TemporaryFile file;
  Trace trace(0, 0);
  Loop loop;
  loop.trace = &trace;
  Inbox<int> inbox(loop, WaitName("grads_ready"));
  std::vector<int> taken;
  loop.spawn("reducer", take_keys(inbox, {4, 5}, taken));
  loop.run_until_idle();
  inbox.put(4, 1);
  inbox.put(5, 1);  // here before it is asked for: no wait, no slice
  loop.run();
  trace.write(file.path);
  const auto slices = events_of(file.read(), "X");
  REQUIRE(slices.size() == 1);
  CHECK(slices[0]["name"] == "grads_ready");
  CHECK(slices[0]["cat"] == "wait");
  CHECK(slices[0]["args"]["key"] == 4);
  CHECK(slices[0]["tid"] == 0);
}

TEST_CASE("a wait's slice names the actor that ended it, and a message that did has an arrow") {
  TemporaryFile file;
  Trace trace(0, 0);
  Loop loop;
  loop.trace = &trace;
  Inbox<int> inbox(loop, WaitName("grads_ready", "stage"));
  std::vector<int> taken;
  loop.spawn("reducer", take_keys(inbox, {0, 1}, taken));
  loop.run_until_idle();
  loop.spawn("stage", puts(inbox, 0));
  loop.run_until_idle();
  trace.set_arriving(77);
  inbox.put(1, 1);
  CHECK(trace.take_arriving() == 0);
  loop.run();
  trace.write(file.path);
  const auto slices = events_of(file.read(), "X");
  REQUIRE(slices.size() == 2);
  CHECK(slices[0]["args"]["by"] == 1);
  CHECK(slices[0]["args"]["peer"] == "stage");
  CHECK(!slices[1]["args"].contains("by"));
  const auto ends = events_of(file.read(), "f");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0]["id"] == "4d");
  CHECK(ends[0]["cat"] == "control");
  CHECK(ends[0]["tid"] == 0);
}

TEST_CASE("tiles of an op that follow each other are one slice, others are not joined") {
  TemporaryFile file;
  Trace trace(0, 0);
  const int one = trace.add_row("compute queue");
  const int two = trace.add_row("reduction queue");
  trace.op(one, "linear", 0, 1'000'000);
  trace.op(two, "linear", 1'001'000, 1'500'000);
  trace.op(one, "linear", 1'505'000, 2'000'000);  // after more than a poll
  trace.op(one, "linear", 2'004'000, 3'000'000);
  trace.op(one, "norm", 3'001'000, 4'000'000);
  trace.write(file.path);
  const auto slices = events_of(file.read(), "X");
  REQUIRE(slices.size() == 4);
  CHECK(slices[2]["ts"] == 1505.0);
  CHECK(slices[2]["dur"] == 1495.0);
  CHECK(slices[2]["args"]["key"] == 2);
  CHECK(slices[3]["name"] == "norm");
}

TEST_CASE("a clock that runs apart from rank 0's is stretched to it, and facts are the file's") {
  TemporaryFile file;
  Trace trace(1, 1000);
  trace.describe("llm_train", R"({"rank":1})");
  trace.begin_steps(1000);
  trace.end_step(1, 51'000);
  trace.end_step(2, 101'000);
  trace.align_end(101'000, 200'000);
  trace.write(file.path);
  CHECK(file.read()["otherData"]["llm_train"]["rank"] == 1);
  const auto steps = events_of(file.read(), "X");
  REQUIRE(steps.size() == 2);
  CHECK(steps[0]["ts"] == 0.0);
  CHECK(steps[1]["ts"] == 100.0);
  CHECK(steps[1]["dur"] == 100.0);
  CHECK(steps[1]["args"]["key"] == 2);
}

TEST_CASE("an event ends a message's flow when it is set") {
  TemporaryFile file;
  Trace trace(0, 0);
  Loop loop;
  loop.trace = &trace;
  const WaitName name("transfer");
  Event event(loop, name);
  event.end_flow(2, 99);
  loop.spawn("waits", waits(event));
  loop.run_until_idle();
  event.set();
  loop.run();
  trace.write(file.path);
  const auto ends = events_of(file.read(), "f");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0]["tid"] == 2);
  CHECK(ends[0]["id"] == "63");
}

TEST_CASE("a trace of more than a megabyte is written whole") {
  TemporaryFile file;
  Trace trace(1, 0);
  for (int n = 0; n < 20000; ++n) trace.slice(0, "compute", "op", n, n * 10, n * 10 + 5);
  trace.write(file.path);
  CHECK(events_of(file.read(), "X").size() == 20000);
}

TEST_CASE("a trace that cannot be written is an error with the path and the reason") {
  const Trace trace(0, 0);
  CHECK_THROWS_WITH(trace.write("/no/such/folder/trace.json"),
                    Catch::Contains("/no/such/folder/trace.json") &&
                        Catch::Contains("No such file or directory"));
}
