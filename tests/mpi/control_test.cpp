#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>
#include "src/comm/control.h"
#include "tests/mpi/rank_loop.h"

namespace llm {
namespace {

std::vector<std::byte> payload_of(int from, int to, std::size_t n_bytes) {
  std::vector<std::byte> payload(n_bytes);
  for (std::size_t i = 0; i < n_bytes; ++i) {
    payload[i] =
        static_cast<std::byte>(i * 17 + static_cast<std::size_t>(from * 3 + to * 5) + n_bytes);
  }
  return payload;
}

/// What has come from each peer: sizes come in order, so the count says which is next.
struct Arrivals {
  Arrivals(RankTests& tests_, Loop& loop)
      : tests(tests_), next(static_cast<std::size_t>(tests_.n_ranks()), 0), all(loop, name) {}
  void take(int peer, const ControlHeader& header, std::span<const std::byte> payload) {
    std::size_t& n_bytes = next[static_cast<std::size_t>(peer)];
    tests.check(payload.size() == n_bytes && header.key == static_cast<std::int64_t>(n_bytes),
                fmt::format("message {} from rank {} is next", n_bytes, peer));
    const std::vector<std::byte> expected = payload_of(peer, tests.rank(), n_bytes);
    tests.check(n_bytes == 0 || std::memcmp(payload.data(), expected.data(), n_bytes) == 0,
                fmt::format("{} bytes from rank {} are what was sent", n_bytes, peer));
    ++n_bytes;
    if (n_from_all() > max_control_bytes) all.set();
  }
  std::size_t n_from_all() const { return *std::min_element(next.begin(), next.end()); }
  static inline const WaitName name{"all control messages"};
  RankTests& tests;
  std::vector<std::size_t> next;
  Event all;
};

// Far enough ahead that receives lag behind, not so far that MPI's queues are what is tested.
constexpr std::size_t ahead = 100;

Task<> send_messages_of_all_sizes(Transport& transport, Arrivals& arrivals) {
  for (std::size_t n = 0; n <= max_control_bytes; ++n) {
    while (n > arrivals.n_from_all() + ahead) co_await transport.loop().yield();
    for (int peer = 0; peer < transport.n_ranks(); ++peer) {
      const std::vector<std::byte> payload = payload_of(transport.rank(), peer, n);
      transport.send_control(peer, ControlHeader(3, 0, static_cast<std::int64_t>(n)), payload);
    }
  }
  co_await arrivals.all;
}

void messages_of_all_sizes(RankTests& tests) {
  RankLoop here(tests);
  Arrivals arrivals(tests, here.loop);
  here.transport.on_control(
      [&arrivals](int peer, const ControlHeader& header, std::span<const std::byte> payload) {
        arrivals.take(peer, header, payload);
      });
  here.loop.spawn("sender", send_messages_of_all_sizes(here.transport, arrivals));
  here.loop.run();
  tests.session().barrier();  // a peer may still send to this transport
}

struct Ball {
  Ball() = default;
  Ball(std::int64_t n_hops_, std::int64_t sum_) : n_hops(n_hops_), sum(sum_) {}
  std::int64_t n_hops = 0;
  std::int64_t sum = 0;
};

constexpr std::int64_t n_hops_in_all = 5000;

Task<> player(int rank, int n_ranks, Inbox<Ball>& inbox, Port<Ball> next) {
  std::int64_t hop = rank;
  if (rank == 0) next(1, Ball(1, 1));
  for (hop = rank == 0 ? n_ranks : rank; hop <= n_hops_in_all; hop += n_ranks) {
    const Ball ball = co_await inbox.take(hop);
    CHECK_CONTRACT(ball.n_hops == hop && ball.sum == hop * (hop + 1) / 2,
                   "the ball is the right one");
    if (hop < n_hops_in_all) next(hop + 1, Ball(hop + 1, ball.sum + hop + 1));
  }
}

void a_ball_goes_round(RankTests& tests) {
  RankLoop here(tests);
  ControlPlane control(here.transport);
  Inbox<Ball> inbox(here.loop, WaitName("ball"));
  control.connect(7, inbox);
  const int next = (tests.rank() + 1) % tests.n_ranks();
  here.loop.spawn("player",
                  player(tests.rank(), tests.n_ranks(), inbox, control.port<Ball>(next, 7)));
  here.loop.run();
  tests.check(inbox.n_kept() == 0, "every ball was taken");
}

}  // namespace

void test_control(RankTests& tests) {
  tests.run("control messages of 0 to 4000 bytes arrive in order from everyone at everyone",
            messages_of_all_sizes);
  tests.run("a ball goes round all ranks 5000 hops through ports and inboxes", a_ball_goes_round);
}

}  // namespace llm
