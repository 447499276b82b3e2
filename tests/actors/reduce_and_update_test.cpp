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
class Update {
 public:
  Update(int n_ranks, double clip_norm, std::uint64_t seed) : network_(loop_, n_ranks, seed) {
    OptimizerConfig config;
    config.lr = {.shape = LrShape::constant, .peak = 1e-3};
    config.clip_norm = clip_norm;
    std::vector<int> ranks;
    for (int r = 0; r < n_ranks; ++r) ranks.push_back(r);
    for (int r = 0; r < n_ranks; ++r) {
      Rank& rank = ranks_.emplace_back(network_.rank(r), ranks);
      loop_.add_poller(rank.poller);
      OptimizerShard::Plan plan;
      plan.config = config;
      plan.n_ranks = n_ranks;
      plan.parameters_by_rank = {rank.state.canonical()};
      plan.n_steps = 1;
      rank.optimizer = std::make_unique<OptimizerShard>(
          rank.alone, rank.queue, rank.queue, std::move(plan), rank.state,
          OptimizerShard::Outbox{rank.updated.port(), rank.reports.port()});
      loop_.spawn("optimizer", rank.optimizer->run());
      for (int lane = 0; lane < n_lanes; ++lane) {
        rank.reducers.push_back(std::make_unique<GradientReducer>(
            loop_, rank.queue, GradientReducer::Plan{lane, n_lanes, 16, 64, 0, 1}, rank.group,
            rank.state.layout().buckets, rank.state.flat_gradients(0),
            GradientReducer::Outbox{port_to(rank.optimizer->reduced())}));
        loop_.spawn("reducer", rank.reducers.back()->run());
      }
    }
  }
  ~Update() {
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
    Rank(Transport& transport, const std::vector<int>& ranks)
        : poller(queue, 1),
          group(transport, ranks),
          alone(transport, {transport.rank()}),
          state(parity_gpt2(), 2048, 1) {}
    Queue queue;
    QueuePoller poller;
    Group group;
    Group alone;  // a pipeline of one rank
    ModelState state;
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
    Update update(2, 1.0, seed);
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
    Update update(n_ranks, 1.0, 1);
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
  Update update(3, 1.0, 1);
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

TEST_CASE("gradients of 20,000 on four ranks average finite: sums are f32 under every precision") {
  Update update(4, 0.0, 1);
  for (int rank = 0; rank < 4; ++rank) update.gradients(rank)[9] = 20000;
  update.run();
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_FALSE(update.report(rank).skipped);
    CHECK(update.report(rank).grad_norm == 80000);  // above float16's 65,504
    CHECK(update.state(rank).flat_m().as<float>()[9] == Approx(8000).epsilon(1e-6));
  }
}
