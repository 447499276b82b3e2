#include "src/rt/task.h"

#include <catch2/catch.hpp>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/rt/actors_of_tests.h"

using namespace llm;

namespace {

Task<int> twice(int x) {
  co_return 2 * x;
}

Task<std::unique_ptr<std::string>> boxed(std::string text) {
  co_return std::make_unique<std::string>(std::move(text));
}

Task<> fails(std::string why) {
  if (!why.empty()) throw std::runtime_error(why);
  co_return;
}

Task<> adds(int n, long& sum) {
  for (int i = 0; i < n; ++i) {
    const int doubled = co_await twice(i);
    sum += doubled;
  }
}

Task<int> depth(int n) {
  if (n == 0) co_return 0;
  const int below = co_await depth(n - 1);
  co_return below + 1;
}

Task<> keeps_depth(int n, int& out) {
  const int found = co_await depth(n);
  out = found;
}

Task<> takes_box(std::string& out) {
  const std::unique_ptr<std::string> box =
      co_await boxed("a text that is longer than small strings");
  out = *box;
}

Task<> catches(std::string& out) {
  try {
    co_await fails("from the child");
  } catch (const std::runtime_error& error) {
    out = error.what();
  }
}

Task<> notes_start(bool& started) {
  started = true;
  co_return;
}

}  // namespace

TEST_CASE("a task starts when it is awaited or spawned, not when it is made") {
  bool started = false;
  Loop loop;
  Task<> task = notes_start(started);
  CHECK_FALSE(started);
  loop.spawn("starts", std::move(task));
  CHECK_FALSE(started);
  loop.run();
  CHECK(started);
}

TEST_CASE("a million children in a row do not grow the stack") {
  long sum = 0;
  Loop loop;
  loop.spawn("adds", adds(1'000'000, sum));
  loop.run();
  CHECK(sum == 999'999L * 1'000'000L);
}

TEST_CASE("children 100000 deep return without growing the stack") {
  int out = 0;
  Loop loop;
  loop.spawn("depth", keeps_depth(100'000, out));
  loop.run();
  CHECK(out == 100'000);
}

TEST_CASE("a result may be move-only") {
  std::string out;
  Loop loop;
  loop.spawn("box", takes_box(out));
  loop.run();
  CHECK(out == "a text that is longer than small strings");
}

TEST_CASE("an exception leaves a child through its await") {
  std::string out;
  Loop loop;
  loop.spawn("catches", catches(out));
  loop.run();
  CHECK(out == "from the child");
}

TEST_CASE("an actor's exception leaves run() as it was thrown") {
  Loop loop;
  loop.spawn("fails", fails("of the actor"));
  CHECK_THROWS_WITH(loop.run(), "of the actor");
}

TEST_CASE("a task that is never started is destroyed with its arguments") {
  const auto shared = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = shared;
  bool started = false;
  {
    const Task<> task = notes_start(started);
  }
  CHECK_FALSE(started);
  CHECK_FALSE(watch.expired());
}
