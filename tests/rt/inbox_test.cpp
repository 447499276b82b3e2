#include "src/rt/inbox.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/rt/port.h"
#include "tests/rt/actors_of_tests.h"

using namespace llm;

namespace {

Task<> take_box(Inbox<std::unique_ptr<int>>& inbox, int& out) {
  const std::unique_ptr<int> box = co_await inbox.take(3);
  out = *box;
}

Task<> put_keys(Loop& loop, Inbox<int>& inbox, std::vector<std::int64_t> keys) {
  for (const std::int64_t key : keys) {
    inbox.put(key, static_cast<int>(key) * 10);
    co_await loop.yield();
  }
}

std::vector<std::int64_t> shuffled(int n, std::uint64_t seed) {
  std::vector<std::int64_t> keys;
  for (int i = 0; i < n; ++i) keys.push_back(i);
  for (std::size_t i = keys.size(); i > 1; --i) {
    std::swap(keys[i - 1], keys[philox_at(seed, i)[0] % i]);
  }
  return keys;
}

}  // namespace

TEST_CASE("messages are taken by key, whatever the order of arrival") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    Loop loop;
    Inbox<int> inbox(loop, WaitName("message"));
    std::vector<int> taken;
    const std::vector<std::int64_t> order = shuffled(20, seed);
    loop.spawn("taker", take_keys(inbox, order, taken));
    loop.spawn("putter", put_keys(loop, inbox, shuffled(20, seed + 1000)));
    loop.run();
    std::vector<int> expected;
    for (const std::int64_t key : order) expected.push_back(static_cast<int>(key) * 10);
    REQUIRE(taken == expected);
    REQUIRE(inbox.n_kept() == 0);
  }
}

TEST_CASE("several coroutines wait at one inbox, each for its own key") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("message"));
  std::vector<int> first;
  std::vector<int> second;
  std::vector<int> third;
  loop.spawn("first", take_keys(inbox, {1}, first));
  loop.spawn("second", take_keys(inbox, {2, 4}, second));
  loop.spawn("third", take_keys(inbox, {3}, third));
  CHECK_FALSE(loop.run_until_idle());
  for (const int key : {4, 3, 2, 1}) inbox.put(key, key);
  loop.run();
  CHECK(first == std::vector{1});
  CHECK(second == std::vector{2, 4});
  CHECK(third == std::vector{3});
}

TEST_CASE("two coroutines that wait for one message are a bug") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("message"));
  std::vector<int> taken;
  loop.spawn("one", take_keys(inbox, {1}, taken));
  loop.spawn("other", take_keys(inbox, {1}, taken));
  CHECK_THROWS_AS(loop.run(), ContractBroken);
}

TEST_CASE("a second message with a key that is still kept is a bug, named") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("grads_ready"));
  inbox.put(7, 1);
  CHECK_THROWS_WITH(inbox.put(7, 2), Catch::Contains("grads_ready(7)"));
}

TEST_CASE("a key may come again after it was taken") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("message"));
  std::vector<int> taken;
  loop.spawn("taker", take_keys(inbox, {5, 5, 5}, taken));
  for (int n = 1; n <= 3; ++n) {
    inbox.put(5, n);
    loop.run_until_idle();
  }
  CHECK(taken == std::vector{1, 2, 3});
}

TEST_CASE("more kept messages than the capacity are a bug, with the number") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("activation"), 2);
  inbox.put(1, 1);
  inbox.put(2, 2);
  CHECK_THROWS_WITH(inbox.put(3, 3), Catch::Contains("activation") && Catch::Contains("at most 2"));
}

TEST_CASE("messages may be move-only") {
  Loop loop;
  Inbox<std::unique_ptr<int>> inbox(loop, WaitName("box"));
  int out = 0;
  loop.spawn("taker", take_box(inbox, out));
  loop.run_until_idle();
  port_to(inbox)(3, std::make_unique<int>(42));
  loop.run();
  CHECK(out == 42);
}

TEST_CASE("a put wakes by the run queue: nothing runs on the sender's stack") {
  Loop loop;
  Inbox<int> inbox(loop, WaitName("message"));
  std::vector<int> taken;
  loop.spawn("taker", take_keys(inbox, {1}, taken));
  loop.run_until_idle();
  inbox.put(1, 1);
  CHECK(taken.empty());
  loop.run();
  CHECK(taken == std::vector{1});
}

TEST_CASE("a port that leads nowhere is a bug when it is used") {
  const Port<int> port;
  CHECK_THROWS_AS(port(1, 1), ContractBroken);
}
