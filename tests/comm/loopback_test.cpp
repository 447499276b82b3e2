#include "src/comm/loopback/loopback.h"

#include <catch2/catch.hpp>
#include <deque>
#include <set>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/comm/control.h"
#include "tests/comm/loopback_group.h"

using namespace llm;

namespace {

const WaitName wait_moved{"moved"};

/// One message of an exchange: its own buffers and events at both ends.
struct Message {
  Message(Loop& loop, int from_, int to_, int tag_, int number_)
      : from(from_),
        to(to_),
        tag(tag_),
        number(number_),
        sent_value(from * 1000 + to * 100 + tag * 10 + number),
        sent(loop, wait_moved),
        received(loop, wait_moved) {}
  int from;
  int to;
  int tag;
  int number;
  std::int32_t sent_value;
  std::int32_t received_value = -1;
  Event sent;
  Event received;
};

Task<> wait_for(std::deque<Message>& messages, std::vector<const Message*>& order) {
  for (Message& message : messages) {
    co_await message.received;
    co_await message.sent;
    order.push_back(&message);
  }
}

Task<> note(Event& event, std::vector<int>& order, int who) {
  co_await event;
  order.push_back(who);
}

void start(LoopbackNetwork& network, Message& message) {
  // The part stays 0: only the lane's order can bring the right number to the right receive.
  const Header header(MessageKind::user, 1, 0, 0);
  network.rank(message.from)
      .send(message.to, message.tag, header, View(&message.sent_value, {1}), message.sent);
}

void post(LoopbackNetwork& network, Message& message) {
  const Header header(MessageKind::user, 1, 0, 0);
  network.rank(message.to)
      .receive(message.from, message.tag, header, MutView(&message.received_value, {1}),
               message.received);
}

struct Note {
  Note() = default;
  explicit Note(int value_) : value(value_) {}
  int value = 0;
};

Task<> take_notes(Inbox<Note>& inbox, int n, std::vector<int>& taken) {
  for (int key = 0; key < n; ++key) {
    const Note message = co_await inbox.take(key);
    taken.push_back(message.value);
  }
}

}  // namespace

TEST_CASE("messages of one lane arrive in order, for 500 seeds") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Loop loop(LoopbackGroup::options());
    LoopbackNetwork network(loop, 3, seed);
    std::deque<Message> messages;
    for (int number = 0; number < 5; ++number) {
      for (int from = 0; from < 3; ++from) {
        for (int to = 0; to < 3; ++to) {
          for (int tag = 0; tag < 2; ++tag) messages.emplace_back(loop, from, to, tag, number);
        }
      }
    }
    for (Message& message : messages) start(network, message);
    for (Message& message : messages) post(network, message);
    std::vector<const Message*> order;
    loop.spawn("wait", wait_for(messages, order));
    loop.run();
    INFO("seed " << seed);
    for (const Message& message : messages) REQUIRE(message.received_value == message.sent_value);
    REQUIRE(network.n_delivered() == 90);
  }
}

TEST_CASE("seeds give different orders of delivery, one seed always the same") {
  std::set<std::vector<int>> orders;
  const auto order_of = [](std::uint64_t seed) {
    Loop loop(LoopbackGroup::options());
    LoopbackNetwork network(loop, 2, seed);
    std::deque<Message> messages;
    std::vector<int> order;
    for (int tag = 0; tag < 6; ++tag) {
      Message& message = messages.emplace_back(loop, 0, 1, tag, 0);
      start(network, message);
      post(network, message);
      loop.spawn("note", note(message.received, order, tag));
    }
    loop.run();
    return order;
  };
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    orders.insert(order_of(seed));
    REQUIRE(order_of(seed) == order_of(seed));
  }
  CHECK(orders.size() > 100);
}

TEST_CASE("a wrong header or size is an error that shows both sides, rank and tag") {
  Loop loop(LoopbackGroup::options());
  LoopbackNetwork network(loop, 2, 0);
  std::vector<float> sent(8, 1.0f);
  std::vector<float> received(8, 0.0f);
  Event sent_event(loop, wait_moved);
  Event received_event(loop, wait_moved);
  std::vector<int> order;
  const Header header(MessageKind::activation, 3, 1, 0);
  Header other = header;
  std::string arrived = "activation step 3 index 1 part 0: 8 f32";
  std::int64_t n = 8;
  SECTION("index") {
    other.index = 2;
    arrived = "activation step 3 index 2 part 0: 8 f32";
  }
  SECTION("kind") {
    other.kind = MessageKind::input_grad;
    arrived = "input_grad step 3 index 1 part 0: 8 f32";
  }
  SECTION("size") {
    n = 7;
    arrived = "activation step 3 index 1 part 0: 7 f32";
  }
  network.rank(0).send(1, 77, other, View(sent.data(), {n}), sent_event);
  network.rank(1).receive(0, 77, header, MutView(received.data(), {8}), received_event);
  loop.spawn("note", note(received_event, order, 1));
  CHECK_THROWS_WITH(loop.run(),
                    Catch::Contains("from rank 0 on tag 77") &&
                        Catch::Contains("expected [activation step 3 index 1 part 0: 8 f32]") &&
                        Catch::Contains("arrived [" + arrived + "]"));
  CHECK(received == std::vector<float>(8, 0.0f));
}

TEST_CASE("a tag outside MPI's promise is a bug") {
  Loop loop;
  LoopbackNetwork network(loop, 1, 0);
  Event event(loop, wait_moved);
  float x = 0;
  CHECK_THROWS_AS(network.rank(0).send(0, 32768, Header(), View(&x, {1}), event), ContractBroken);
  CHECK_THROWS_AS(network.rank(0).receive(0, -1, Header(), MutView(&x, {1}), event),
                  ContractBroken);
}

TEST_CASE("control messages of one sender keep their order, and early ones wait for their inbox") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Loop loop(LoopbackGroup::options());
    LoopbackNetwork network(loop, 2, seed);
    ControlPlane sender(network.rank(0));
    ControlPlane receiver(network.rank(1));
    const Port<Note> to_first = sender.port<Note>(1, 1);
    const Port<Note> to_second = sender.port<Note>(1, 2);
    Inbox<Note> first(loop, WaitName("first"));
    Inbox<Note> second(loop, WaitName("second"));
    std::vector<int> taken_first;
    std::vector<int> taken_second;
    loop.spawn("first", take_notes(first, 4, taken_first));
    loop.spawn("second", take_notes(second, 4, taken_second));
    for (int key = 0; key < 4; ++key) to_first(key, Note(10 + key));
    for (int key = 0; key < 4; ++key) to_second(key, Note(20 + key));
    receiver.connect(1, first);
    while (network.n_delivered() < 8 && !loop.run_until_idle()) {
    }
    REQUIRE(taken_second.empty());
    receiver.connect(2, second);
    loop.run();
    INFO("seed " << seed);
    REQUIRE(taken_first == std::vector{10, 11, 12, 13});
    REQUIRE(taken_second == std::vector{20, 21, 22, 23});
  }
}

TEST_CASE("a port to an inbox of this rank delivers at once") {
  Loop loop;
  LoopbackNetwork network(loop, 1, 0);
  ControlPlane control(network.rank(0));
  Inbox<Note> inbox(loop, WaitName("note"));
  control.connect(5, inbox);
  control.port<Note>(0, 5)(9, Note(1));
  CHECK(inbox.n_kept() == 1);
  CHECK(network.rank(0).counts().control_sent == 0);
}

TEST_CASE("two inboxes on a channel, or another message type at the other end, are errors") {
  Loop loop(LoopbackGroup::options());
  LoopbackNetwork network(loop, 2, 0);
  ControlPlane sender(network.rank(0));
  ControlPlane receiver(network.rank(1));
  Inbox<Note> inbox(loop, WaitName("note"));
  Inbox<Note> other(loop, WaitName("other"));
  receiver.connect(1, inbox);
  CHECK_THROWS_AS(receiver.connect(1, other), ContractBroken);
  sender.port<double>(1, 1)(0, 1.5);
  std::vector<int> taken;
  loop.spawn("taker", take_notes(inbox, 1, taken));
  CHECK_THROWS_WITH(loop.run(), Catch::Contains("from rank 0 on channel 1 has 8 bytes, not 4"));
}

TEST_CASE("a group knows this rank's place, and refuses a rank that is not in it") {
  Loop loop;
  LoopbackNetwork network(loop, 4, 0);
  const Group group(network.rank(2), {3, 2, 0});
  CHECK(group.index == 1);
  CHECK(group.size() == 3);
  CHECK(group.rank_of(0) == 3);
  CHECK_THROWS_AS(Group(network.rank(1), {0, 2}), ContractBroken);
}
