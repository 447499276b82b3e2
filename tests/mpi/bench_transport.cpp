// Hops and collectives of actors over MPI, each beside plain MPI in the same run: minima of
// repeats.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include "src/comm/collective.h"
#include "src/comm/control.h"
#include "src/comm/mpi/check_mpi.h"
#include "src/comm/mpi/mpi_transport.h"
#include "src/comm/mpi/shared_ranks.h"
#include "src/rt/clock.h"
#include "tensor/storage.h"
#include "tests/support/queue_poller.h"

namespace {

using namespace llm;

// Short and many: a machine with other work still has quiet moments.
constexpr int n_repeats_max = 300;
constexpr int n_repeats_min = 10;
constexpr double seconds_max = 2.5;
constexpr std::int64_t rest_ns = 1'500'000;
const WaitName wait_sent{"sent"};
const WaitName wait_received{"received"};

/// Least microseconds of each way of doing one thing, taken in turns so that both meet the same
/// machine.
struct Pair {
  double raw_us = 1e30;
  double actors_us = 1e30;
};

Pair compare(const MpiSession& session, double n_units, const std::function<void()>& raw,
             const std::function<void()>& actors) {
  Pair best;
  const auto timed_us = [&](const std::function<void()>& run) {
    // A shaped link lets a burst pass at once after a rest, and both ways are to meet it rested.
    const std::int64_t rested_ns = now_ns() + rest_ns;
    while (now_ns() < rested_ns) {
    }
    session.barrier();
    const std::int64_t begin_ns = now_ns();
    run();
    return static_cast<double>(now_ns() - begin_ns) * 1e-3 / n_units;
  };
  const std::int64_t begin_ns = now_ns();
  for (int n = 0; n < n_repeats_max; ++n) {
    best.raw_us = std::min(best.raw_us, timed_us(raw));
    best.actors_us = std::min(best.actors_us, timed_us(actors));
    const bool is_late = static_cast<double>(now_ns() - begin_ns) * 1e-9 > seconds_max;
    // Rank 0 says when: the ranks repeat equally often.
    if (n >= n_repeats_min && session.broadcast(is_late ? "stop" : "") == "stop") break;
  }
  return best;
}

void print(const MpiSession& session, const char* what, const Pair& best) {
  if (session.rank() != 0) return;
  std::printf("%-44s %10.2f us, plain MPI %10.2f us, ratio %.2f\n", what, best.actors_us,
              best.raw_us, best.actors_us / best.raw_us);
  std::fflush(stdout);
}

struct Buffers {
  explicit Buffers(std::int64_t n_bytes)
      : mine(static_cast<std::size_t>(n_bytes)), theirs(static_cast<std::size_t>(n_bytes)) {}
  std::vector<std::uint8_t> mine;
  std::vector<std::uint8_t> theirs;
};

void raw_ping_pong(int rank, Buffers& buffers, int n_round_trips) {
  const int n = static_cast<int>(buffers.mine.size());
  const int peer = 1 - rank;
  const auto send = [&] {
    CHECK_MPI(MPI_Send(buffers.mine.data(), n, MPI_BYTE, peer, 0, MPI_COMM_WORLD), peer);
  };
  for (int i = 0; i < n_round_trips; ++i) {
    if (rank == 0) send();
    CHECK_MPI(
        MPI_Recv(buffers.theirs.data(), n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
        peer);
    if (rank == 1) send();
  }
}

Task<> ball_player(int rank, Inbox<std::int64_t>& inbox, Port<std::int64_t> other, int n) {
  if (rank == 0) other(0, 0);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t ball = co_await inbox.take(i);
    if (rank == 1 || i + 1 < n) other(rank == 0 ? i + 1 : i, ball);
  }
}

void bench_control_hop(const MpiSession& session) {
  constexpr int n_round_trips = 1000;
  Buffers bytes(8);
  Loop loop;
  MpiTransport transport(session, loop);
  ControlPlane control(transport);
  Inbox<std::int64_t> inbox(loop, WaitName("ball"));
  control.connect(1, inbox);
  const Port<std::int64_t> other = control.port<std::int64_t>(1 - session.rank(), 1);
  print(session, "8-byte hop of actors",
        compare(
            session, 2.0 * n_round_trips,
            [&] { raw_ping_pong(session.rank(), bytes, n_round_trips); },
            [&] {
              loop.spawn("player", ball_player(session.rank(), inbox, other, n_round_trips));
              loop.run();
            }));
}

Task<> tensor_player(Transport& transport, MutView mine, MutView theirs, int n_round_trips) {
  const int peer = 1 - transport.rank();
  Loop& loop = transport.loop();
  for (int i = 0; i < n_round_trips; ++i) {
    const Header header(MessageKind::user, i, 0, 0);
    Event received(loop, wait_received);
    Event sent(loop, wait_sent);
    transport.receive(peer, 1, header, theirs, received);
    if (transport.rank() == 0) transport.send(peer, 1, header, mine, sent);
    co_await received;
    if (transport.rank() == 1) transport.send(peer, 1, header, mine, sent);
    co_await sent;
  }
}

void bench_tensor_hop(const MpiSession& session, const char* what, std::int64_t n_bytes) {
  const int n_round_trips = n_bytes > 500'000 ? 10 : 50;
  Buffers bytes(n_bytes);
  Loop loop;
  MpiTransport transport(session, loop);
  print(session, what,
        compare(
            session, 2.0 * n_round_trips,
            [&] { raw_ping_pong(session.rank(), bytes, n_round_trips); },
            [&] {
              loop.spawn("player",
                         tensor_player(transport, MutView(bytes.mine.data(), {n_bytes}),
                                       MutView(bytes.theirs.data(), {n_bytes}), n_round_trips));
              loop.run();
            }));
}

struct Reduction {
  Reduction(Transport& transport, const std::vector<int>& ranks, std::int64_t n)
      : group(transport, ranks),
        shape{group.index, group.size(), even_cuts(n, group.size(), 4096)},
        reduce(reduce_scatter_plan(best_form(group.size()), shape)),
        gather(all_gather_plan(best_form(group.size()), shape)),
        values(static_cast<std::size_t>(n), 1.0f),
        scratch(static_cast<std::size_t>(reduce.scratch_elements)) {}
  Group group;
  CollectiveShape shape;
  ReduceScatterPlan reduce;
  std::vector<GatherRound> gather;
  std::vector<float> values;
  std::vector<float> scratch;
};

Task<> reductions(Reduction& all, Queue& queue, int n_times) {
  const MutView vector(all.values.data(), {static_cast<std::int64_t>(all.values.size())});
  const MutView scratch(all.scratch.data(), {static_cast<std::int64_t>(all.scratch.size())});
  for (int n = 0; n < n_times; ++n) {
    const CollectiveId id(2, n, 0);
    co_await reduce_scatter(all.group, queue, all.reduce, id, vector, scratch);
    co_await all_gather(all.group, all.gather, id, vector);
  }
}

/// The faster of MPI's own is what there is to beat.
struct RawAllReduce {
  explicit RawAllReduce(std::size_t n) : values(n, 0.0f) {}
  void blocking() {
    CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT,
                            MPI_SUM, MPI_COMM_WORLD),
              no_peer);
  }
  void non_blocking() {
    MPI_Request request = MPI_REQUEST_NULL;
    CHECK_MPI(MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()),
                             MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request),
              no_peer);
    CHECK_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE), no_peer);
  }
  std::vector<float> values;
};

/// A sum in place of vectors that all ranks of this machine map.
struct InPlaceReduction {
  InPlaceReduction(Group& group_, std::int64_t n)
      : group(group_),
        memory(Storage::shared(n * 4)),
        plan(in_place_plan({group.index, group.size(), even_cuts(n, group.size(), 16)}, 16384)),
        whole{0, n} {}
  Group& group;
  Storage memory;
  InPlacePlan plan;
  Range whole;
  GroupVectors vectors;
};

Task<> map_peers(InPlaceReduction& all) {
  std::vector<SharedHandle> handles(static_cast<std::size_t>(all.group.size()));
  handles[static_cast<std::size_t>(all.group.index)] = all.memory.handle();
  co_await exchange_handles(all.group, CollectiveId(3, 0, 0), handles);
  const MutView own = all.memory.view(Dtype::f32, {all.whole.size()});
  all.vectors = GroupVectors(all.group.index, own, handles);
}

Task<> sums_in_place(InPlaceReduction& all, Queue& queue, int n_times) {
  for (int n = 0; n < n_times; ++n) {
    const CollectiveId id(3, n, 0);
    co_await sum_in_place(all.group, queue, all.plan, id, all.vectors, all.whole);
  }
}

void bench_all_reduce(const MpiSession& session, const char* size, std::int64_t n_bytes) {
  const int n_times = n_bytes > 4'000'000 ? 1 : 5;
  Loop loop;
  Queue queue;
  LoopQueue compute(loop, queue);
  MpiTransport transport(session, loop);
  std::vector<int> ranks;
  for (int r = 0; r < session.n_ranks(); ++r) ranks.push_back(r);
  Reduction all(transport, ranks, n_bytes / 4);
  RawAllReduce raw(all.values.size());
  const auto repeat = [n_times](const std::function<void()>& run) {
    for (int n = 0; n < n_times; ++n) run();
  };
  const auto messages = [&] {
    loop.spawn("reductions", reductions(all, queue, n_times));
    loop.run();
  };
  const auto print_ratio = [&](const char* what, const Pair& best) {
    print(session, fmt::format("{} of {}", what, size).c_str(), best);
  };
  print_ratio("messages, over Allreduce,",
              compare(session, n_times, [&] { repeat([&] { raw.blocking(); }); }, messages));
  print_ratio("messages, over Iallreduce,",
              compare(session, n_times, [&] { repeat([&] { raw.non_blocking(); }); }, messages));
  if (!ranks_share_memory(session)) return;
  InPlaceReduction shared(all.group, n_bytes / 4);
  loop.spawn("map", map_peers(shared));
  loop.run();
  const auto in_place = [&] {
    loop.spawn("sums", sums_in_place(shared, queue, n_times));
    loop.run();
  };
  print_ratio("in place, over Allreduce,",
              compare(session, n_times, [&] { repeat([&] { raw.blocking(); }); }, in_place));
  print_ratio("in place, over Iallreduce,",
              compare(session, n_times, [&] { repeat([&] { raw.non_blocking(); }); }, in_place));
}

}  // namespace

int main() {
  MpiSession session;
  return run_and_report(session, [&session] {
    if (session.n_ranks() == 2) {
      bench_control_hop(session);
      bench_tensor_hop(session, "64 KB tensor", 64 << 10);
      bench_tensor_hop(session, "1 MB tensor", 1 << 20);
    }
    bench_all_reduce(session, "64 KB", 64 << 10);
    bench_all_reduce(session, "256 KB", 256 << 10);
    bench_all_reduce(session, "1 MB", 1 << 20);
    bench_all_reduce(session, "16 MB", 16 << 20);
    bench_all_reduce(session, "64 MB", 64 << 20);
    return 0;
  });
}
