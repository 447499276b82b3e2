#include "actors/tensor_sums.h"

#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <vector>

#include "actors/square_sums.h"
#include "src/comm/loopback/loopback.h"
#include "src/comm/queue_poller.h"
#include "tensor/ops/elementwise.h"
#include "tests/actors/rig.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Ranks that share each layer.
struct Ranks {
  struct Rank {
    Rank(Transport& transport, const std::vector<int>& ranks, TensorSums::Plan plan)
        : poller(queue, 1),
          group(transport, ranks),
          alone(transport, {transport.rank()}),
          sums(group, alone, reductions, plan),
          reductions_poller(reductions, 64) {}
    Queue queue;
    Queue reductions;
    QueuePoller poller;
    Group group;
    Group alone;
    TensorSums sums;
    QueuePoller reductions_poller;
  };
  Ranks(int n, TensorSums::Plan plan, std::uint64_t seed = 1) : network(loop, n, seed) {
    std::vector<int> all;
    for (int r = 0; r < n; ++r) all.push_back(r);
    for (int r = 0; r < n; ++r) {
      Rank& rank = ranks.emplace_back(network.rank(r), all, plan);
      loop.add_poller(rank.poller);
      loop.add_poller(rank.reductions_poller);
      loop.spawn_background("tensor_sums", rank.sums.run());
    }
  }
  ~Ranks() {
    loop.drop_actors();
    for (Rank& rank : ranks) {
      loop.remove_poller(rank.poller);
      loop.remove_poller(rank.reductions_poller);
    }
  }
  /// Until every rank's queue has passed what was put in before.
  void run() {
    for (Rank& rank : ranks) {
      Event& passed = events.emplace_back(loop, wait_passed);
      rank.queue.notify([&passed] { passed.set(); });
      loop.spawn("wait", wait_for(passed));
    }
    loop.run();
  }
  static Task<> wait_for(Event& event) { co_await event; }

  const WaitName wait_passed{"passed"};
  Loop loop{Rig::options()};
  LoopbackNetwork network;
  std::deque<Rank> ranks;
  std::deque<Event> events;
};

Task<> total_of(SquareSums& squares, double& total) {
  const double sum = co_await squares.total(0);
  total = sum;
}

}  // namespace

TEST_CASE("what is enqueued after a sum sees it, on every rank, whatever the order of messages") {
  constexpr std::int64_t n = 100;
  for (const int n_ranks : {2, 3, 4, 5}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Ranks world(n_ranks, {.tag = 5, .max_elements = n}, seed);
      std::vector<std::vector<float>> x(static_cast<std::size_t>(n_ranks));
      std::vector<std::vector<float>> seen(x.size(), std::vector<float>(n));
      for (std::size_t r = 0; r < x.size(); ++r) {
        x[r].assign(n, static_cast<float>(r + 1));
        Ranks::Rank& rank = world.ranks[r];
        const MutView view(x[r].data(), {n});
        rank.sums.all_reduce(rank.queue, view);
        add(rank.queue, view, view);  // doubles the sum
        rank.sums.all_reduce(rank.queue, view);
        copy(rank.queue, view, MutView(seen[r].data(), {n}));
      }
      world.run();
      const auto sum = static_cast<float>(n_ranks * (n_ranks + 1) / 2 * 2 * n_ranks);
      for (const std::vector<float>& values : seen) CHECK(values == std::vector<float>(n, sum));
    }
  }
}

TEST_CASE("rows are summed and gathered in pieces, uneven ones and of bf16 too") {
  constexpr std::int64_t width = 3;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (const int n_ranks : {2, 3, 4, 5}) {
      for (const std::int64_t n : {5, 8, 11}) {
        Ranks world(n_ranks, {.tag = 5,
                              .max_elements = 11 * width,
                              .row_width = width,
                              .is_low = dtype != Dtype::f32});
        std::deque<Storage> storages;
        for (Ranks::Rank& rank : world.ranks) {
          const MutView x = storages.emplace_back(4 * n * width).view(dtype, {n, width});
          fill(rank.queue, static_cast<float>(rank.group.index + 1), x);
          rank.sums.reduce_scatter_rows(rank.queue, x);
          rank.sums.gather_rows(rank.queue, x);
        }
        world.run();
        const auto sum = static_cast<float>(n_ranks * (n_ranks + 1) / 2);
        for (const Storage& storage : storages) {
          Queue queue;
          std::vector<float> values(static_cast<std::size_t>(n * width));
          convert(queue, storage.view(dtype, {n, width}), MutView(values.data(), {n, width}));
          queue.finish();
          CHECK(values == std::vector<float>(values.size(), sum));
        }
      }
    }
  }
}

TEST_CASE("sums of bf16 are f32 and rounded once") {
  constexpr std::int64_t n = 20;
  Ranks world(4, {.tag = 5, .max_elements = n, .is_low = true});
  std::deque<Storage> storages;
  for (Ranks::Rank& rank : world.ranks) {
    const MutView view = storages.emplace_back(2 * n).view(Dtype::bf16, {n});
    // 256 + 1 + 1 + 1 is 260 in steps of 2, and 256 if each sum were rounded.
    fill(rank.queue, rank.group.index == 0 ? 256.0f : 1.0f, view);
    rank.sums.all_reduce(rank.queue, view);
  }
  world.run();
  for (const Storage& storage : storages) {
    Queue queue;
    std::vector<float> values(n);
    convert(queue, storage.view(Dtype::bf16, {n}), MutView(values.data(), {n}));
    queue.finish();
    CHECK(values == std::vector<float>(n, 260.0f));
  }
}

TEST_CASE("squares of 9 in parts and of 16 on every rank are a norm of 5, not of 6.4") {
  Ranks world(2, {});
  ModelConfig config = parity_gpt2();
  std::deque<ModelState> states;
  std::deque<SquareSums> squares;
  std::vector<double> totals(2);
  for (int r = 0; r < 2; ++r) {
    config.tp = {.size = 2, .rank = r};
    ModelState& state = states.emplace_back(
        config, StateShape{.ranges = {all_layers(config)}, .bucket_bytes = 1 << 20});
    for (const auto& pieces : state.shard().pieces) {
      for (const OwnedPiece& piece : pieces) {
        const Role role = state.specs()[state.spec_of(piece.tensor)].role;
        // One square of 4.5 in each rank's columns; one of 16 that both have.
        if (role == Role::down_weight) state.gradient(piece).as<float>()[0] = 1.5f;
        if (role == Role::final_norm_weight) state.gradient(piece).as<float>()[0] = 4;
      }
    }
    Ranks::Rank& rank = world.ranks[static_cast<std::size_t>(r)];
    squares.emplace_back(
        rank.alone, rank.alone, rank.group,
        SquareSums::Plan{.parameters_by_rank = {state.canonical()}, .tensor_tag = 7}, state);
    for (std::size_t b = 0; b < state.layout().buckets.size(); ++b) {
      squares.back().enqueue(rank.queue, b);
    }
    rank.queue.finish();
    world.loop.spawn("total", total_of(squares.back(), totals[static_cast<std::size_t>(r)]));
  }
  world.loop.run();
  // Two blocks: 2 x 2 x 1.5^2 = 9.
  CHECK(totals == std::vector<double>{25, 25});
}
