// Tensors on a device between ranks: through pinned buffers, and by NCCL.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/comm/collective.h"
#include "tests/comm/device_group.h"
#include "tests/support/device_values.h"
#include "tests/support/values.h"

namespace llm {
namespace {

using test::DeviceRanks;
using test::Values;
using test::Way;

const WaitName wait_moved{"moved"};

std::string name_of(Way way) {
  return way == Way::staged ? "staged" : "NCCL";
}

/// One message with its memory at both ends; its numbers say which.
struct Message {
  Message(Loop& loop, int from_, int to_, int tag_, std::int64_t n, Device at_sender,
          Device at_receiver, int number)
      : from(from_),
        to(to_),
        tag(tag_),
        values(values_of(number, n)),
        source(values, at_sender),
        target(std::vector<float>(values.size()), at_receiver),
        sent(loop, wait_moved),
        received(loop, wait_moved) {}
  void send(DeviceRanks& ranks) {
    ranks.rank(from).send(to, tag, Header(MessageKind::user, 1, 0, 0), source.view(), sent);
  }
  void receive(DeviceRanks& ranks) {
    ranks.rank(to).receive(from, tag, Header(MessageKind::user, 1, 0, 0), target.view(), received);
  }
  int from;
  int to;
  int tag;
  std::vector<float> values;
  Values source;
  Values target;
  Event sent;
  Event received;
};

Task<> wait_for(std::deque<Message>& messages) {
  for (Message& message : messages) {
    co_await message.received;
    co_await message.sent;
  }
}

/// Ends with an error when the message overtook one of its lane.
Task<> wait_in_order(std::deque<Message>& messages, std::size_t place) {
  co_await messages[place].received;
  for (std::size_t i = 0; i < place; ++i) {
    const Message& before = messages[i];
    const Message& own = messages[place];
    const bool is_same = before.from == own.from && before.to == own.to && before.tag == own.tag;
    CHECK_CONTRACT(!is_same || before.received.is_set(), "messages of a lane are told in order");
  }
  co_await messages[place].sent;
}

Task<> wait_for_one(Event& event) {
  co_await event;
}

Task<> exchange(DeviceRanks& ranks, std::deque<Message>& messages) {
  for (Message& message : messages) {
    message.receive(ranks);
    message.send(ranks);
    co_await message.received;
    co_await message.sent;
  }
}

/// A file that is gone with the test.
struct TemporaryFile {
  TemporaryFile()
      : path(std::filesystem::temp_directory_path() /
             ("llm-device-trace-" + std::to_string(getpid()) + ".json")) {}
  ~TemporaryFile() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

int n_found(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

Task<> wait_until(std::function<bool()> holds, Loop& loop) {
  while (!holds()) co_await loop.yield();
}

/// One rank's part in the collectives, on the device.
struct Member {
  Member(Transport& transport, const std::vector<int>& ranks, CollectiveForm form,
         const std::vector<std::int64_t>& cuts, int tag)
      : group(transport, ranks),
        poller(transport.loop(), queue),
        shape{group.index, group.size(), cuts},
        reduce(reduce_scatter_plan(form, shape)),
        gather(all_gather_plan(form, shape)),
        id(tag, 1, tag),
        vector(values_of(group.index, cuts.back()), Device::cuda),
        scratch(std::vector<float>(static_cast<std::size_t>(reduce.scratch_elements)),
                Device::cuda),
        spread(values_of(group.index, cuts.back()), Device::cuda),
        from_last(broadcast_plan(group.index, group.size(), group.size() - 1, cuts.back())) {}
  Group group;
  Queue queue{Device::cuda};
  LoopQueue poller;
  CollectiveShape shape;
  ReduceScatterPlan reduce;
  std::vector<GatherRound> gather;
  CollectiveId id;
  Values vector;
  Values scratch;
  Values spread;
  std::vector<GatherRound> from_last;
};

Task<> run_all(Member& member) {
  co_await reduce_scatter(member.group, member.queue, member.reduce, member.id,
                          member.vector.view(), member.scratch.view());
  co_await all_gather(member.group, member.gather, member.id, member.vector.view());
  co_await broadcast(member.group, member.from_last, member.id, member.spread.view());
}

void check_collectives(Way way, int n_ranks, CollectiveForm form, std::uint64_t seed,
                       const std::vector<std::int64_t>& sizes) {
  DeviceRanks ranks(way, n_ranks, seed, 256);
  std::vector<int> all;
  for (int r = 0; r < n_ranks; ++r) all.push_back(r);
  std::deque<Member> members;
  for (int r = 0; r < n_ranks; ++r) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Member& member = members.emplace_back(ranks.rank(r), all, form,
                                            even_cuts(sizes[i], n_ranks, 1), static_cast<int>(i));
      ranks.loop.spawn(fmt::format("rank {} vector {}", r, i), run_all(member));
    }
  }
  ranks.loop.run();
  for (const Member& member : members) {
    std::vector<float> sums;
    for (std::int64_t i = 0; i < member.shape.cuts.back(); ++i) {
      sums.push_back(tree_sum(0, n_ranks, i));
    }
    CHECK(member.vector.read() == sums);
    CHECK(member.spread.read() == values_of(n_ranks - 1, member.shape.cuts.back()));
  }
}

/// Messages with drawn ends, sizes and places, sent and awaited in drawn orders.
void check_drawn_messages(Way way, std::uint64_t seed) {
  const int n_ranks = 2 + static_cast<int>(seed % 3);
  DeviceRanks ranks(way, n_ranks, seed);
  std::uint64_t n_draws = 0;
  const auto draw = [&](int n) {
    return static_cast<int>(philox_at(seed, n_draws++)[0] % static_cast<std::uint32_t>(n));
  };
  constexpr std::int64_t sizes[] = {0, 1, 15, 16, 17, 100};
  std::deque<Message> messages;
  for (int i = 0; i < 40; ++i) {
    const int from = draw(n_ranks);
    const int to = (from + 1 + draw(n_ranks - 1)) % n_ranks;
    const Device at_sender = draw(3) == 0 ? Device::cpu : Device::cuda;
    const bool is_free = way == Way::staged && draw(2) == 0;
    const Device at_receiver = is_free ? (draw(2) == 0 ? Device::cpu : Device::cuda) : at_sender;
    messages.emplace_back(ranks.loop, from, to, draw(2), sizes[draw(6)], at_sender, at_receiver, i);
  }
  std::size_t n_sent = 0;
  std::size_t n_posted = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ranks.loop.spawn("wait", wait_in_order(messages, i));
  }
  while (n_sent + n_posted < 2 * messages.size()) {
    const bool sends = n_posted == messages.size() || (n_sent < messages.size() && draw(2) == 0);
    sends ? messages[n_sent++].send(ranks) : messages[n_posted++].receive(ranks);
    if (draw(3) == 0) ranks.loop.run_until_idle();
  }
  ranks.loop.run();
  for (const Message& message : messages) REQUIRE(message.target.read() == message.values);
}

}  // namespace

TEST_CASE("collectives of tensors on devices have the CPU's bits") {
  for (const Way way : {Way::staged, Way::nccl}) {
    for (int n_ranks = 2; n_ranks <= 4; ++n_ranks) {
      for (const CollectiveForm form : {CollectiveForm::direct, CollectiveForm::recursive}) {
        if (form == CollectiveForm::recursive && n_ranks == 3) continue;
        INFO(name_of(way) << ", " << n_ranks << " ranks");
        check_collectives(way, n_ranks, form, static_cast<std::uint64_t>(n_ranks),
                          {0, 1, 37, 1001});
      }
    }
  }
}

TEST_CASE("messages arrive whole and in order for every drawn order, size and place") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    for (const Way way : {Way::staged, Way::nccl}) {
      INFO(name_of(way) << ", seed " << seed);
      check_drawn_messages(way, seed);
    }
  }
}

TEST_CASE("a wrong header or size of a tensor on a device is an error that shows both sides") {
  for (const Way way : {Way::staged, Way::nccl}) {
    for (const bool is_size : {true, false}) {
      DeviceRanks ranks(way, 2, 3);
      const Values sent(values_of(0, is_size ? 40 : 41), Device::cuda);
      const Values received(std::vector<float>(41), Device::cuda);
      Event sent_event(ranks.loop, wait_moved);
      Event received_event(ranks.loop, wait_moved);
      const Header header(MessageKind::activation, 3, 1, 0);
      const Header other(MessageKind::activation, 3, is_size ? 1 : 2, 0);
      ranks.rank(0).send(1, 7, other, sent.view(), sent_event);
      ranks.rank(1).receive(0, 7, header, received.view(), received_event);
      ranks.loop.spawn("wait", wait_for_one(received_event));
      CHECK_THROWS_WITH(
          ranks.loop.run(),
          Catch::Contains(
              "a message from rank 0 on tag 7 is not the one expected: expected "
              "[activation step 3 index 1 part 0: 41 f32], arrived [activation step 3") &&
              Catch::Contains(is_size ? "index 1 part 0: 40 f32]" : "index 2 part 0: 41 f32]"));
      CHECK_FALSE(received_event.is_set());
    }
  }
}

TEST_CASE("a tensor on a device is one message of its lane, and the inner transport counts none") {
  for (const Way way : {Way::staged, Way::nccl}) {
    DeviceRanks ranks(way, 2, 5);
    std::deque<Message> messages;
    messages.emplace_back(ranks.loop, 0, 1, 4, 1000, Device::cuda, Device::cuda, 1);
    messages.front().send(ranks);
    CHECK(ranks.rank(0).counts().messages_sent == 1);
    CHECK(ranks.rank(0).counts().bytes_sent == 4000);
    ranks.loop.run_until_idle();
    messages.front().receive(ranks);
    const LaneCounts& lane = ranks.rank(1).lanes().at({0, 4});
    CHECK((lane.awaited == 1 && lane.arrived == 0));
    ranks.loop.spawn("wait", wait_for(messages));
    ranks.loop.run();
    CHECK(lane.arrived == 1);
    CHECK(ranks.network.rank(0).counts().messages_sent == 0);
    CHECK(ranks.network.rank(0).counts().control_sent == 0);
    CHECK(ranks.rank(1).channels().empty());
  }
}

TEST_CASE("a tensor on a device has one arrow in a trace") {
  for (const Way way : {Way::staged, Way::nccl}) {
    for (const std::int64_t n : {0, 1000}) {
      DeviceRanks ranks(way, 2, 5);
      Trace trace(0, 0);
      ranks.loop.trace = &trace;
      std::deque<Message> messages;
      messages.emplace_back(ranks.loop, 0, 1, 4, n, Device::cuda, Device::cuda, 1);
      ranks.loop.spawn("exchange", exchange(ranks, messages));
      ranks.loop.run();
      const TemporaryFile file;
      trace.write(file.path);
      std::ifstream stream(file.path);
      const std::string text((std::istreambuf_iterator<char>(stream)), {});
      CHECK(n_found(text, "\"ph\":\"s\"") == 1);
      CHECK(n_found(text, "\"ph\":\"f\"") == 1);
    }
  }
}

TEST_CASE("control messages pass a transport for devices, and are counted once") {
  for (const Way way : {Way::staged, Way::nccl}) {
    DeviceRanks ranks(way, 2, 6);
    std::vector<std::int64_t> keys;
    std::vector<std::int64_t> about_stalls;
    ranks.rank(1).on_control([&](int, const ControlHeader& header, std::span<const std::byte>) {
      keys.push_back(header.key);
    });
    ranks.rank(1).on_stall_message(
        [&](int, const ControlHeader& header, std::span<const std::byte>) {
          about_stalls.push_back(header.key);
        });
    ranks.rank(0).send_control(1, ControlHeader(3, 0, 8), {});
    ranks.rank(0).send_control(1, ControlHeader(stall_channel, 0, 9), {});
    ranks.loop.spawn(
        "wait", wait_until([&] { return !keys.empty() && !about_stalls.empty(); }, ranks.loop));
    ranks.loop.run();
    CHECK(keys == std::vector<std::int64_t>{8});
    CHECK(about_stalls == std::vector<std::int64_t>{9});
    CHECK(ranks.rank(0).counts().control_sent == 1);
    CHECK(ranks.rank(1).channels().at({0, 3}).arrived == 1);
  }
}

TEST_CASE("buffers are used again, and a lane has a few however long its tensors are") {
  DeviceRanks ranks(Way::staged, 2, 7, 8192);
  for (int round = 0; round < 3; ++round) {
    std::deque<Message> messages;
    messages.emplace_back(ranks.loop, 0, 1, 4, 40'000, Device::cuda, Device::cuda, round);
    messages.front().send(ranks);
    messages.front().receive(ranks);
    ranks.loop.spawn("wait", wait_for(messages));
    ranks.loop.run();
    CHECK(messages.front().target.read() == messages.front().values);
    CHECK(ranks.staged[0]->pinned_bytes() == 4 * 8192);
    CHECK(ranks.staged[1]->pinned_bytes() == 4 * 8192);
  }
}

TEST_CASE("a transport may end with messages in flight, and its memory goes with it") {
  for (const Way way : {Way::staged, Way::nccl}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      DeviceRanks ranks(way, 2, seed);
      std::deque<Message> messages;
      for (int i = 0; i < 6; ++i) {
        messages.emplace_back(ranks.loop, i % 2, 1 - i % 2, 4, 100, Device::cuda, Device::cuda, i);
        if (i < 5) messages.back().send(ranks);
        if (i > 0) messages.back().receive(ranks);
      }
      ranks.loop.spawn("wait", wait_for(messages));
      for (std::uint64_t n = 0; n < seed; ++n) ranks.loop.run_until_idle();
      ranks.loop.drop_actors();
      ranks.staged.clear();
      ranks.nccl.clear();
    }
  }
  CHECK(emulator::n_communicators() == 0);
}

TEST_CASE("NCCL has a communicator for each direction that has had a tensor") {
  {
    DeviceRanks ranks(Way::nccl, 4, 8);
    std::deque<Message> messages;
    messages.emplace_back(ranks.loop, 0, 1, 4, 9, Device::cuda, Device::cuda, 0);
    messages.emplace_back(ranks.loop, 0, 1, 5, 9, Device::cuda, Device::cuda, 1);
    messages.emplace_back(ranks.loop, 2, 1, 4, 9, Device::cuda, Device::cuda, 2);
    messages.emplace_back(ranks.loop, 3, 1, 4, 9, Device::cpu, Device::cpu, 3);
    messages.emplace_back(ranks.loop, 3, 0, 4, 0, Device::cuda, Device::cuda, 3);
    for (Message& message : messages) message.send(ranks);
    for (Message& message : messages) message.receive(ranks);
    ranks.loop.spawn("wait", wait_for(messages));
    ranks.loop.run();
    CHECK(ranks.nccl[1]->n_links() == 2);
    CHECK(ranks.nccl[0]->n_links() == 1);
    CHECK(ranks.nccl[3]->n_links() == 0);
    CHECK(emulator::n_communicators() == 4);
  }
  CHECK(emulator::n_communicators() == 0);
}

TEST_CASE(
    "an error that NCCL reports later is one line with both ranks, and ends what it waits for") {
  {
    DeviceRanks ranks(Way::nccl, 2, 9);
    std::deque<Message> messages;
    messages.emplace_back(ranks.loop, 0, 1, 4, 9, Device::cuda, Device::cuda, 0);
    messages.front().send(ranks);
    messages.front().receive(ranks);
    ranks.loop.spawn("wait", wait_for(messages));
    ranks.loop.run();
    messages.emplace_back(ranks.loop, 1, 0, 4, 9, Device::cuda, Device::cuda, 0);
    messages.back().receive(ranks);  // nobody sends
    ranks.loop.spawn("wait", wait_for(messages));
    emulator::fail_nccl(ncclRemoteError);
    CHECK_THROWS_WITH(ranks.loop.run(),
                      "NCCL: remote process exited or there was a network error (messages between "
                      "rank 0 and rank 1)");
  }
  emulator::fail_nccl(ncclSuccess);
  CHECK(emulator::n_communicators() == 0);
}

TEST_CASE("a message that lies on a device at one end alone is refused by NCCL's transport") {
  for (const bool is_at_sender : {true, false}) {
    DeviceRanks ranks(Way::nccl, 2, 10);
    std::deque<Message> messages;
    const Device sender = is_at_sender ? Device::cuda : Device::cpu;
    const Device receiver = is_at_sender ? Device::cpu : Device::cuda;
    messages.emplace_back(ranks.loop, 0, 1, 4, 9, sender, receiver, 0);
    messages.emplace_back(ranks.loop, 0, 1, 4, 9, Device::cuda, Device::cuda, 0);
    for (Message& message : messages) message.send(ranks);
    for (Message& message : messages) message.receive(ranks);
    ranks.loop.spawn("wait", wait_for(messages));
    CHECK_THROWS_WITH(
        ranks.loop.run(),
        fmt::format("message 0 on tag 4 from rank 0 to rank 1 lies on {} at the "
                    "sender and on {} at the receiver; NCCL moves tensors between "
                    "devices",
                    is_at_sender ? "a device" : "the CPU", is_at_sender ? "the CPU" : "a device"));
  }
}

TEST_CASE("what NCCL's kernels need of CUDA is in the environment, but for what the user has set") {
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  unsetenv("CUDA_MODULE_LOADING");
  unsetenv("NCCL_NVLS_ENABLE");
  setenv("NCCL_DEBUG", "INFO", 1);
  set_nccl_environment();
  CHECK(std::string(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")) == "32");
  CHECK(std::string(std::getenv("CUDA_MODULE_LOADING")) == "EAGER");
  CHECK(std::string(std::getenv("NCCL_NVLS_ENABLE")) == "0");
  CHECK(std::string(std::getenv("NCCL_DEBUG")) == "INFO");
  unsetenv("NCCL_DEBUG");
  set_nccl_environment();
  CHECK(std::string(std::getenv("NCCL_DEBUG")) == "WARN");
}

}  // namespace llm
