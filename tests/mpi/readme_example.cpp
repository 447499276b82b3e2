// pi by throwing darts, on any number of ranks: mpirun -n 3 ./darts
#include <cstdio>
#include <numbers>

#include "src/base/philox.h"
#include "src/comm/control.h"
#include "src/comm/mpi/mpi_transport.h"

using namespace llm;

constexpr std::int64_t n_rounds = 20;
constexpr std::int64_t n_darts = 100'000;  // a round and rank

// Messages are plain values with a constructor; a key (here: round * ranks + rank) says which one.
struct Start {
  Start() = default;
};
struct Hits {
  Hits() = default;
  explicit Hits(std::int64_t n_hits_) : n_hits(n_hits_) {}
  std::int64_t n_hits = 0;
};
enum Channel { start_channel = 1, hits_channel = 2 };  // both sides of a port agree on its number

std::int64_t throw_darts(std::int64_t key) {
  std::int64_t n_hits = 0;
  for (std::int64_t dart = 0; dart < n_darts; ++dart) {
    const auto bits = philox_at(static_cast<std::uint64_t>(key), static_cast<std::uint64_t>(dart));
    const float x = uniform_from(bits[0]);
    const float y = uniform_from(bits[1]);
    n_hits += x * x + y * y < 1.0f;
  }
  return n_hits;
}

// Lives on every rank. Waits for start(round), sends hits(round, rank).
class Thrower {
 public:
  Thrower(Loop& loop, int rank, int n_ranks, Port<Hits> hits)
      : start(loop, WaitName("start", "counter")), rank_(rank), n_ranks_(n_ranks), hits_(hits) {}
  Task<> run() {
    for (std::int64_t round = 0; round < n_rounds; ++round) {
      co_await start.take(round);
      const std::int64_t key = round * n_ranks_ + rank_;
      hits_(key, Hits(throw_darts(key)));
    }
  }
  Inbox<Start> start;

 private:
  int rank_;
  int n_ranks_;
  Port<Hits> hits_;
};

// Lives on rank 0. Sends start(round) to all, waits for hits(round, rank) of all.
class Counter {
 public:
  Counter(Loop& loop, std::vector<Port<Start>> starts)
      : hits(loop, WaitName("hits", "throwers")), starts_(std::move(starts)) {}
  Task<> run() {
    const auto n_ranks = static_cast<std::int64_t>(starts_.size());
    std::int64_t n_hits = 0;
    for (std::int64_t round = 0; round < n_rounds; ++round) {
      for (const Port<Start>& start : starts_) start(round, Start());
      for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
        const Hits of_rank = co_await hits.take(round * n_ranks + rank);
        n_hits += of_rank.n_hits;
      }
    }
    const double pi = 4.0 * static_cast<double>(n_hits) / (n_rounds * n_ranks * n_darts);
    std::printf("%ld ranks: pi is about %.3f, off by %.3f\n", n_ranks, pi, pi - std::numbers::pi);
  }
  Inbox<Hits> hits;

 private:
  std::vector<Port<Start>> starts_;
};

int main() {
  MpiSession session;
  return run_and_report(session, [&session] {
    Loop loop;
    MpiTransport transport(session, loop);
    ControlPlane control(transport);
    Thrower thrower(loop, session.rank(), session.n_ranks(), control.port<Hits>(0, hits_channel));
    control.connect(start_channel, thrower.start);
    std::vector<Port<Start>> starts;
    for (int rank = 0; rank < session.n_ranks(); ++rank) {
      starts.push_back(control.port<Start>(rank, start_channel));
    }
    Counter counter(loop, std::move(starts));
    if (session.rank() == 0) {
      control.connect(hits_channel, counter.hits);
      loop.spawn("counter", counter.run());
    }
    loop.spawn("thrower", thrower.run());
    loop.run();
    return 0;
  });
}
