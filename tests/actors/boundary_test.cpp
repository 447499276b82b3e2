#include "actors/boundary.h"

#include <catch2/catch.hpp>
#include <string>

#include "src/base/error.h"
#include "src/comm/loopback/loopback.h"
#include "tests/actors/rig.h"

using namespace llm;

namespace {

constexpr Boundary at_sender{.peer = 1, .tag = 7, .kind = MessageKind::activation, .stage = 1};
constexpr Boundary at_receiver{.peer = 0, .tag = 7, .kind = MessageKind::activation, .stage = 1};

/// Two ranks on one loop, and a boundary between them.
struct TwoRanks {
  explicit TwoRanks(int n_buffers, std::uint64_t seed = 1)
      : loop(Rig::options()),
        network(loop, 2, seed),
        sender(network.rank(0), at_sender),
        receiver(network.rank(1), at_receiver, {n_buffers, 4, 2, Dtype::f32}),
        arrived(loop, WaitName("arrived")) {
    loop.spawn_background("sender", sender.run());
    loop.spawn_background("receiver", receiver.run());
  }
  ~TwoRanks() { loop.drop_actors(); }
  void send(std::int32_t index, float* values, std::int64_t n_rows) {
    const Leased leased(MutView(values, {n_rows, 2}), Lease());
    sender.send(Outgoing(3, index, leased));
  }

  Loop loop;
  LoopbackNetwork network;
  TensorSender sender;
  TensorReceiver receiver;
  Inbox<Leased> arrived;
};

Task<> take_all(Inbox<Leased>& arrived, int n, std::vector<float>& first_values, Loop& loop) {
  for (int i = 0; i < n; ++i) {
    const Leased leased = co_await arrived.take(10 + i);
    for (int turn = 0; turn < 5; ++turn) co_await loop.yield();
    first_values.push_back(leased.tensor.as<float>()[0]);
    leased.lease.give_back();
  }
}

Task<> note_the_end(TensorSender& sender, bool& is_over) {
  co_await sender.all_sent();
  co_await sender.all_sent();  // nothing is left: at once
  is_over = true;
}

Task<> let_pass(Loop& loop) {
  for (int turn = 0; turn < 500; ++turn) co_await loop.yield();
}

}  // namespace

TEST_CASE("tensors arrive in order and whole, however few buffers there are") {
  for (int n_buffers = 1; n_buffers <= 4; ++n_buffers) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      TwoRanks ranks(n_buffers, seed);
      const std::vector<std::int64_t> n_rows{4, 1, 3, 2, 4, 4};
      float values[6][8] = {};
      for (std::int32_t i = 0; i < 6; ++i) {
        values[i][0] = static_cast<float>(i) + 0.5f;
        ranks.send(i, values[i], n_rows[static_cast<std::size_t>(i)]);
      }
      ranks.receiver.expected().put(0, ExpectedTensors(3, 0, 10, n_rows, ranks.arrived));
      std::vector<float> seen;
      ranks.loop.spawn("taker", take_all(ranks.arrived, 6, seen, ranks.loop));
      ranks.loop.run();
      CHECK(seen == std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f});
    }
  }
}

TEST_CASE("a buffer is written again only when it was given back") {
  TwoRanks ranks(2);
  const std::vector<std::int64_t> n_rows{4, 4, 4};
  float values[3][8] = {};
  for (std::int32_t i = 0; i < 3; ++i) ranks.send(i, values[i], 4);
  ranks.receiver.expected().put(0, ExpectedTensors(3, 0, 10, n_rows, ranks.arrived));
  ranks.loop.spawn("some turns", let_pass(ranks.loop));
  ranks.loop.run();
  CHECK(ranks.arrived.n_kept() == 2);
}

TEST_CASE("who waits for all that was given to a sender goes on when the last one is sent") {
  TwoRanks ranks(2);
  const std::vector<std::int64_t> n_rows{4, 4, 4};
  float values[3][8] = {};
  for (std::int32_t i = 0; i < 3; ++i) ranks.send(i, values[i], 4);
  bool is_over = false;
  ranks.loop.spawn("sender's end", note_the_end(ranks.sender, is_over));
  ranks.receiver.expected().put(0, ExpectedTensors(3, 0, 10, n_rows, ranks.arrived));
  std::vector<float> seen;
  ranks.loop.spawn("some turns", let_pass(ranks.loop));
  ranks.loop.run_until_idle();
  CHECK(!is_over);  // the third has no buffer
  ranks.loop.spawn("taker", take_all(ranks.arrived, 3, seen, ranks.loop));
  ranks.loop.run();
  CHECK(is_over);
}

TEST_CASE("a tensor of another microbatch than expected is an error that shows both") {
  TwoRanks ranks(2);
  float values[8] = {};
  const std::vector<std::int64_t> n_rows{4};
  ranks.send(5, values, 4);
  ranks.receiver.expected().put(0, ExpectedTensors(3, 0, 10, n_rows, ranks.arrived));
  ranks.loop.spawn("some turns", let_pass(ranks.loop));
  CHECK_THROWS_WITH(ranks.loop.run(),
                    Catch::Contains("activation step 3 index 0 part 1: 8 f32") &&
                        Catch::Contains("activation step 3 index 5 part 1: 8 f32"));
}
