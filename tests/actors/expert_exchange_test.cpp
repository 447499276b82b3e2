#include "actors/expert_exchange.h"

#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "src/comm/loopback/loopback.h"
#include "src/comm/queue_poller.h"
#include "tensor/ops/elementwise.h"
#include "tests/actors/rig.h"

using namespace llm;

namespace {

constexpr std::int64_t width = 3;
constexpr std::int64_t n_own = 2;  // experts of each rank

/// Rows that rank `from` has for expert e of all: some, few or none.
std::int32_t n_rows(int from, std::int64_t e) {
  return from == 1 ? 0 : static_cast<std::int32_t>((from + 2 * e) % 4);
}

/// A rank with the rows of its tokens, each of which names its rank, its expert and its number.
struct Rank {
  Rank(Transport& transport, int n_ranks, const std::vector<int>& all)
      : poller(queue, 1),
        copies_poller(copies, 64),
        group(transport, all),
        exchange(group, copies, 7),
        begins(static_cast<std::size_t>(n_ranks * n_own + 1), 0),
        bounds(static_cast<std::size_t>(n_ranks * (n_own + 1)), -1) {
    for (std::int64_t e = 0; e < n_ranks * n_own; ++e) {
      for (std::int32_t i = 0; i < n_rows(group.index, e); ++i) {
        mine.insert(mine.end(), {static_cast<float>(group.index), static_cast<float>(e),
                                 static_cast<float>(i)});
      }
      begins[static_cast<std::size_t>(e) + 1] =
          static_cast<std::int32_t>(mine.size()) / static_cast<std::int32_t>(width);
    }
    returned.assign(mine.size() + width, -1);
    mine.resize(returned.size(), -2);
    theirs.assign(static_cast<std::size_t>(n_ranks * n_own * 4 * width), -3);
  }
  View begins_view() { return {begins.data(), {static_cast<std::int64_t>(begins.size())}}; }
  MutView bounds_view() {
    const auto n = static_cast<std::int64_t>(bounds.size());
    return {bounds.data(), {n / (n_own + 1), n_own + 1}};
  }
  static MutView rows(std::vector<float>& x) {
    return {x.data(), {static_cast<std::int64_t>(x.size()) / width, width}};
  }

  Queue queue;
  Queue copies;
  QueuePoller poller;
  QueuePoller copies_poller;
  Group group;
  ExpertExchange exchange;
  std::vector<std::int32_t> begins;
  std::vector<std::int32_t> bounds;
  std::vector<float> mine, theirs, returned;
};

Task<> wait_for(Event& event) {
  co_await event;
}

void check_arrivals(const Rank& rank, int n_ranks) {
  std::size_t at = 0;
  for (int from = 0; from < n_ranks; ++from) {
    for (std::int64_t e = rank.group.index * n_own; e < (rank.group.index + 1) * n_own; ++e) {
      for (std::int32_t i = 0; i < n_rows(from, e); ++i, at += width) {
        CHECK(rank.theirs[at] == 2 * static_cast<float>(from));  // doubled before they went back
        CHECK(rank.theirs[at + 1] == 2 * static_cast<float>(e));
        CHECK(rank.theirs[at + 2] == 2 * static_cast<float>(i));
      }
    }
  }
  CHECK(rank.theirs[at] == 2 * -3.0f);  // nothing came after them
}

}  // namespace

TEST_CASE(
    "rows go to their experts' ranks and back, whatever their number and the order of messages") {
  const WaitName wait_passed{"passed"};
  for (const int n_ranks : {1, 2, 3, 4}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      INFO(n_ranks << " ranks, seed " << seed);
      Loop loop(Rig::options());
      LoopbackNetwork network(loop, n_ranks, seed);
      std::vector<int> all;
      for (int r = 0; r < n_ranks; ++r) all.push_back(r);
      std::deque<Rank> ranks;
      std::deque<Event> events;
      for (int r = 0; r < n_ranks; ++r) {
        Rank& rank = ranks.emplace_back(network.rank(r), n_ranks, all);
        loop.add_poller(rank.copies_poller);
        loop.add_poller(rank.poller);
        loop.spawn_background("expert_exchange", rank.exchange.run());
        const MutView theirs = Rank::rows(rank.theirs);
        rank.exchange.share_begins(rank.queue, rank.begins_view(), rank.bounds_view());
        rank.exchange.to_experts(rank.queue, rank.begins_view(), rank.bounds_view(),
                                 Rank::rows(rank.mine), theirs);
        add(rank.queue, part(theirs, 0, {theirs.n_elements()}),
            part(theirs, 0, {theirs.n_elements()}));
        rank.exchange.from_experts(rank.queue, rank.begins_view(), rank.bounds_view(), theirs,
                                   Rank::rows(rank.returned));
        Event& passed = events.emplace_back(loop, wait_passed);
        rank.queue.notify([&passed] { passed.set(); });
        loop.spawn("wait", wait_for(passed));
      }
      loop.run();
      for (const Rank& rank : ranks) {
        check_arrivals(rank, n_ranks);
        const std::size_t n = rank.mine.size() - width;
        for (std::size_t i = 0; i < n; ++i) CHECK(rank.returned[i] == 2 * rank.mine[i]);
        CHECK(rank.returned[n] == -1);
        // Three messages to each other rank, empty or not.
        CHECK(network.rank(rank.group.index).counts().messages_sent == 3 * (n_ranks - 1));
      }
      loop.drop_actors();
      for (Rank& rank : ranks) {
        loop.remove_poller(rank.copies_poller);
        loop.remove_poller(rank.poller);
      }
    }
  }
}
