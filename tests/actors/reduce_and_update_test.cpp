#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <deque>
#include <memory>

#include "actors/gradient_reducer.h"
#include "actors/optimizer_shard.h"
#include "src/comm/loopback/loopback.h"
#include "tests/actors/rig.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr int n_lanes = 2;

/// Reducers and an optimizer on each rank, wired as in a run; gradients and facts come by hand.
class ReducedUpdate {
 public:
  ReducedUpdate(int n_ranks, double clip_norm, std::uint64_t seed, bool is_sharded = false)
      : network_(loop_, n_ranks, seed) {
    OptimizerConfig config;
    config.lr = {.shape = LrShape::constant, .peak = 1e-3};
    config.clip_norm = clip_norm;
    std::vector<int> ranks;
    for (int r = 0; r < n_ranks; ++r) ranks.push_back(r);
    for (int r = 0; r < n_ranks; ++r) {
      Rank& rank = ranks_.emplace_back(network_.rank(r), ranks, is_sharded);
      loop_.add_poller(rank.poller);
      OptimizerShard::Plan plan;
      plan.config = config;
      plan.n_ranks = n_ranks;
      plan.n_steps = 1;
      rank.optimizer = std::make_unique<OptimizerShard>(
          loop_, rank.queue, rank.queue, std::move(plan), rank.state, rank.squares,
          OptimizerShard::Outbox{rank.updated.port(), rank.reports.port()});
      loop_.spawn("optimizer", rank.optimizer->run());
      for (int lane = 0; lane < n_lanes; ++lane) {
        GradientReducer::Plan reducer{lane, n_lanes, 16, 64, 0, 1};
        if (is_sharded) reducer.piece_cuts = rank.cuts();
        rank.reducers.push_back(std::make_unique<GradientReducer>(
            loop_, rank.queue, std::move(reducer), rank.group, rank.state.layout().buckets,
            rank.state.flat_gradients(0),
            GradientReducer::Outbox{port_to(rank.optimizer->reduced())}));
        loop_.spawn("reducer", rank.reducers.back()->run());
      }
    }
  }
  ~ReducedUpdate() {
    loop_.drop_actors();
    for (Rank& rank : ranks_) loop_.remove_poller(rank.poller);
  }

  ModelState& state(int rank) { return ranks_[static_cast<std::size_t>(rank)].state; }
  float* gradients(int rank) { return state(rank).flat_gradients(0).as<float>(); }
  const StepReport& report(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)].reports.messages.at(0);
  }
  /// One valid token on rank 0, and every bucket complete everywhere.
  void run() {
    const auto n_buckets = static_cast<std::int64_t>(state(0).layout().buckets.size());
    for (std::size_t from = 0; from < ranks_.size(); ++from) {
      for (Rank& to : ranks_) {
        to.optimizer->step_facts().put(static_cast<std::int64_t>(from), {from == 0 ? 1 : 0, 0});
      }
      for (std::int64_t b = 0; b < n_buckets; ++b) {
        ranks_[from].reducers[static_cast<std::size_t>(b % n_lanes)]->grads_ready().put(b, Ready{});
      }
    }
    loop_.run();
  }

 private:
  struct Rank {
    Rank(Transport& transport, const std::vector<int>& ranks, bool is_sharded)
        : poller(queue, 1),
          group(transport, ranks),
          alone(transport, {transport.rank()}),
          state(parity_gpt2(), shape_of(group, is_sharded)),
          squares(alone, group, alone, squares_of(group, state, is_sharded), state) {}
    static int piece_of(const Group& group, int member) {
      return piece_of_rank(best_form(group.size()), member, group.size());
    }
    static StateShape shape_of(const Group& group, bool is_sharded) {
      StateShape shape{.ranges = {all_layers(parity_gpt2())}, .bucket_bytes = 2048};
      if (!is_sharded) return shape;
      shape.n_pieces = group.size();
      shape.piece = piece_of(group, group.index);
      return shape;
    }
    static SquareSums::Plan squares_of(const Group& group, const ModelState& state,
                                       bool is_sharded) {
      SquareSums::Plan plan{.parameters_by_rank = {state.canonical()}};
      if (!is_sharded) return plan;
      plan.chunks_tag = 8;
      plan.piece_by_member.clear();
      for (int member = 0; member < group.size(); ++member) {
        plan.piece_by_member.push_back(piece_of(group, member));
      }
      return plan;
    }
    std::vector<std::vector<std::int64_t>> cuts() const {
      std::vector<std::vector<std::int64_t>> cuts;
      for (std::size_t b = 0; b < state.layout().buckets.size(); ++b) {
        cuts.push_back(shard_cuts(state.layout(), b, group.size(), norm_chunk_elements));
      }
      return cuts;
    }
    Queue queue;
    QueuePoller poller;
    Group group;
    Group alone;  // a pipeline of one rank
    ModelState state;
    SquareSums squares;
    Sent<ParametersUpdated> updated;
    Sent<StepReport> reports;
    std::unique_ptr<OptimizerShard> optimizer;
    std::vector<std::unique_ptr<GradientReducer>> reducers;
  };
  Loop loop_{Rig::options()};
  LoopbackNetwork network_;
  std::deque<Rank> ranks_;
};

}  // namespace

TEST_CASE("gradients of norm 3 and 4 on two ranks have norm 5, and a clip at 1 scales by 0.2") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ReducedUpdate update(2, 1.0, seed);
    const std::int64_t place = update.state(0).layout().tensor_begin[4] + 3;
    update.gradients(0)[1] = 3;
    update.gradients(1)[place] = 4;
    update.run();
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(update.report(rank).grad_norm == 5);
      const float* const m = update.state(rank).flat_m().as<float>();
      CHECK(m[1] == Approx(0.1 * 0.6).epsilon(1e-6));
      CHECK(m[place] == Approx(0.1 * 0.8).epsilon(1e-6));
    }
  }
}

TEST_CASE("the norm is that of the sum over ranks, whatever their number") {
  for (const int n_ranks : {1, 2, 3, 4, 7}) {
    INFO(n_ranks << " ranks");
    ReducedUpdate update(n_ranks, 1.0, 1);
    for (int rank = 0; rank < n_ranks; ++rank) {
      update.gradients(rank)[5] = 3.0f * static_cast<float>(rank + 1);
    }
    update.run();
    const double sum = 3.0 * n_ranks * (n_ranks + 1) / 2;
    for (int rank = 0; rank < n_ranks; ++rank) {
      CHECK(update.report(rank).grad_norm == sum);
      CHECK(update.state(rank).flat_m().as<float>()[5] == Approx(0.1).epsilon(1e-6));
    }
  }
}

TEST_CASE("a gradient that is not finite on one rank makes every rank skip") {
  ReducedUpdate update(3, 1.0, 1);
  update.gradients(2)[17] = INFINITY;
  update.run();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(update.report(rank).skipped);
    CHECK(update.report(rank).n_updates == 0);
    const float* const m = update.state(rank).flat_m().as<float>();
    CHECK(
        std::all_of(m, m + update.state(rank).layout().n_elements, [](float x) { return x == 0; }));
  }
}

TEST_CASE("an infinite gradient in one rank's shard makes every rank skip") {
  for (const int n_ranks : {2, 3, 4}) {
    ReducedUpdate update(n_ranks, 1.0, 1, true);
    update.gradients(n_ranks - 1)[17] = INFINITY;
    update.run();
    int n_owners = 0;
    for (int rank = 0; rank < n_ranks; ++rank) {
      const Range own = update.state(rank).shard().flat.front();
      n_owners += own.begin <= 17 && 17 < own.end ? 1 : 0;
      CHECK(update.report(rank).skipped);
      CHECK(update.report(rank).n_updates == 0);
      const float* const m = update.state(rank).flat_m().as<float>();
      CHECK(std::all_of(m, m + update.state(rank).shard().n_elements,
                        [](float x) { return x == 0; }));
    }
    CHECK(n_owners == 1);
  }
}

TEST_CASE("gradients of 20,000 on four ranks average finite where one of them owns the sum") {
  ReducedUpdate update(4, 0.0, 1, true);
  for (int rank = 0; rank < 4; ++rank) update.gradients(rank)[9] = 20000;
  update.run();
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_FALSE(update.report(rank).skipped);
    CHECK(update.report(rank).grad_norm == 80000);
    const Range own = update.state(rank).shard().flat.front();
    if (9 < own.begin || 9 >= own.end) continue;
    CHECK(update.state(rank).flat_m().as<float>()[9 - own.begin] == Approx(8000).epsilon(1e-6));
  }
}

TEST_CASE("gradients of 20,000 on four ranks average finite: sums are f32 under every precision") {
  ReducedUpdate update(4, 0.0, 1);
  for (int rank = 0; rank < 4; ++rank) update.gradients(rank)[9] = 20000;
  update.run();
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_FALSE(update.report(rank).skipped);
    CHECK(update.report(rank).grad_norm == 80000);  // above float16's 65,504
    CHECK(update.state(rank).flat_m().as<float>()[9] == Approx(8000).epsilon(1e-6));
  }
}
