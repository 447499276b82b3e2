#include "tensor/thread_pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace llm;

namespace {

using Tile = std::function<void(std::int64_t)>;

void run_all(ThreadPool& pool, std::int64_t n_tiles, const Tile& run) {
  pool.begin(n_tiles, run);
  while (!pool.done()) {
    if (!pool.run_tile()) std::this_thread::yield();
  }
  pool.rethrow();
}

/// Leaves all tiles to the workers.
void watch(ThreadPool& pool) {
  while (!pool.done()) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a pool runs each tile of each op once, whatever its number of threads") {
  const int n_threads = GENERATE(1, 2, 3, 4, 7);
  CAPTURE(n_threads);
  ThreadPool pool(n_threads);
  CHECK(pool.n_threads() == n_threads);
  constexpr std::int64_t n_ops = 300;
  for (std::int64_t op = 0; op < n_ops; ++op) {
    const std::int64_t n_tiles = 1 + op % 9;
    std::vector<int> n_runs(static_cast<std::size_t>(n_tiles));
    run_all(pool, n_tiles, [&](std::int64_t tile) { ++n_runs[static_cast<std::size_t>(tile)]; });
    REQUIRE(n_runs == std::vector<int>(static_cast<std::size_t>(n_tiles), 1));
  }
}

TEST_CASE("a tile sees what the tiles of the ops before it wrote, on whatever thread") {
  ThreadPool pool(4);
  std::vector<std::int64_t> a(16, 1), b(16);
  for (int op = 0; op < 200; ++op) {
    const std::vector<std::int64_t>& from = op % 2 == 0 ? a : b;
    std::vector<std::int64_t>& to = op % 2 == 0 ? b : a;
    run_all(pool, 16, [&](std::int64_t tile) {
      const auto i = static_cast<std::size_t>(tile);
      to[i] = (from[i] + from[(i + 1) % 16]) % 1'000'003;
    });
  }
  CHECK(a == std::vector<std::int64_t>(16, a[0]));  // all started alike
  std::int64_t expected = 1;
  for (int op = 0; op < 200; ++op) expected = 2 * expected % 1'000'003;
  CHECK(a[0] == expected);
}

TEST_CASE("workers that slept take tiles of the next op") {
  ThreadPool pool(2);
  for (int op = 0; op < 3; ++op) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> n_elsewhere{0};
    const std::thread::id here = std::this_thread::get_id();
    const Tile run = [&](std::int64_t) { n_elsewhere += std::this_thread::get_id() != here; };
    pool.begin(5, run);
    watch(pool);
    CHECK(n_elsewhere == 5);
  }
}

TEST_CASE("the first tile that throws ends its op, and the pool runs the next one") {
  const int n_threads = GENERATE(1, 2, 4);
  CAPTURE(n_threads);
  ThreadPool pool(n_threads);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> n_ran{0};
    CHECK_THROWS_WITH(run_all(pool, 1000,
                              [&](std::int64_t tile) {
                                if (tile >= 3) throw std::runtime_error("broken");
                                ++n_ran;
                              }),
                      "broken");
    CHECK(n_ran == 3);
    CHECK(pool.done());
    run_all(pool, 4, [&](std::int64_t) { ++n_ran; });
    CHECK(n_ran == 7);
  }
}

TEST_CASE("one failure is reported once, though all tiles fail") {
  ThreadPool pool(4);
  const Tile run = [](std::int64_t tile) { throw std::runtime_error(std::to_string(tile)); };
  pool.begin(4, run);
  while (!pool.done()) pool.run_tile();
  CHECK_THROWS_AS(pool.rethrow(), std::runtime_error);
  CHECK_NOTHROW(pool.rethrow());
}

TEST_CASE("after cancel no tile runs, and a failed op that was cancelled is forgotten") {
  ThreadPool pool(3);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> n_running{0};
    const Tile run = [&](std::int64_t tile) {
      ++n_running;
      std::this_thread::yield();
      --n_running;
      if (tile == 2) throw std::runtime_error("broken");
    };
    pool.begin(1000, run);
    pool.run_tile();
    pool.cancel();
    CHECK(pool.done());
    CHECK(n_running == 0);
    CHECK_NOTHROW(pool.rethrow());
  }
}

TEST_CASE("a pool goes away with an op under way, and when nobody ever used it") {
  std::atomic<int> n_running{0};
  const Tile run = [&](std::int64_t) {
    ++n_running;
    std::this_thread::yield();
    --n_running;
  };
  for (int round = 0; round < 30; ++round) {
    const ThreadPool idle(4);
    ThreadPool pool(4);
    pool.begin(1000, run);
    pool.run_tile();
  }
  CHECK(n_running == 0);
}
