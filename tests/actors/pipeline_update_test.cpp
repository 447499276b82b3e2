#include <catch2/catch.hpp>
#include <cmath>
#include <deque>
#include <memory>

#include "actors/optimizer_shard.h"
#include "actors/tied_gradient.h"
#include "src/base/error.h"
#include "src/comm/loopback/loopback.h"
#include "tests/actors/rig.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

ModelConfig four_blocks() {
  ModelConfig config = parity_gpt2();
  config.n_layers = 4;
  return config;
}

/// Optimizers of a pipeline's ranks, each with two blocks of four; gradients come by hand.
class PipelineUpdate {
 public:
  explicit PipelineUpdate(double clip_norm, std::uint64_t seed) : network_(loop_, 2, seed) {
    const std::vector<LayerRanges> layers{{{embedding_layer, 2}}, {{2, 5}}};
    OptimizerShard::Plan plan;
    plan.config.lr = {.shape = LrShape::constant, .peak = 1e-3};
    plan.config.clip_norm = clip_norm;
    plan.n_ranks = 1;
    SquareSums::Plan squares;
    for (const LayerRanges& ranges : layers) {
      squares.parameters_by_rank.push_back(owned_parameters(four_blocks(), ranges));
    }
    plan.n_steps = 1;
    for (std::size_t r = 0; r < 2; ++r) {
      Rank& rank = ranks_.emplace_back(network_.rank(static_cast<int>(r)), layers[r], squares);
      loop_.add_poller(rank.poller);
      rank.optimizer = std::make_unique<OptimizerShard>(
          loop_, rank.queue, rank.queue, plan, rank.state, rank.squares,
          OptimizerShard::Outbox{rank.updated.port(), rank.reports.port()});
      loop_.spawn("optimizer", rank.optimizer->run());
    }
  }
  ~PipelineUpdate() {
    loop_.drop_actors();
    for (Rank& rank : ranks_) loop_.remove_poller(rank.poller);
  }

  ModelState& state(std::size_t rank) { return ranks_[rank].state; }
  float* gradients(std::size_t rank) { return state(rank).flat_gradients(0).as<float>(); }
  const StepReport& report(std::size_t rank) const { return ranks_[rank].reports.messages.at(0); }
  void run() {
    for (Rank& rank : ranks_) {
      rank.optimizer->step_facts().put(0, {1, 0});
      for (std::size_t b = rank.state.layout().buckets.size(); b > 0; --b) {
        rank.optimizer->reduced().put(static_cast<std::int64_t>(b - 1), Ready{});
      }
    }
    loop_.run();
  }

 private:
  struct Rank {
    Rank(Transport& transport, const LayerRanges& ranges, const SquareSums::Plan& plan)
        : poller(queue, 1),
          pipeline(transport, {0, 1}),
          alone(transport, {transport.rank()}),
          state(four_blocks(), StateShape{.ranges = ranges, .bucket_bytes = 2048}),
          squares(pipeline, pipeline, alone, plan, state) {}
    Queue queue;
    QueuePoller poller;
    Group pipeline;
    Group alone;
    ModelState state;
    SquareSums squares;
    Sent<ParametersUpdated> updated;
    Sent<StepReport> reports;
    std::unique_ptr<OptimizerShard> optimizer;
  };
  Loop loop_{Rig::options()};
  LoopbackNetwork network_;
  std::deque<Rank> ranks_;
};

void fill(const MutView& view, float value) {
  std::fill_n(view.as<float>(), view.n_elements(), value);
}

}  // namespace

TEST_CASE("gradients of norm 3 and 4 on two stages clip as 5") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    PipelineUpdate update(1.0, seed);
    update.gradients(0)[1] = 3;
    update.gradients(1)[7] = 4;
    update.run();
    for (const std::size_t rank : {0u, 1u}) CHECK(update.report(rank).grad_norm == 5);
    CHECK(update.state(0).flat_m().as<float>()[1] == Approx(0.1 * 0.6).epsilon(1e-6));
    CHECK(update.state(1).flat_m().as<float>()[7] == Approx(0.1 * 0.8).epsilon(1e-6));
  }
}

TEST_CASE("an infinite gradient on the last stage makes every stage skip") {
  PipelineUpdate update(1.0, 1);
  update.gradients(1)[3] = INFINITY;
  update.run();
  for (const std::size_t rank : {0u, 1u}) {
    CHECK(update.report(rank).skipped);
    CHECK(update.report(rank).n_updates == 0);
  }
}

TEST_CASE("a tied embedding belongs to the last stage alone, which counts it in the norm once") {
  PipelineUpdate update(0, 1);
  CHECK(update.state(0).tied_tensor() == -1);
  CHECK(!update.state(0).borrowed_embedding().empty());
  const std::int64_t tied = update.state(1).tied_tensor();
  REQUIRE(tied >= 0);
  update.gradients(1)[update.state(1).layout().tensor_begin[static_cast<std::size_t>(tied)]] = 2;
  update.run();
  CHECK(update.report(0).grad_norm == 2);
  CHECK(update.report(1).grad_norm == 2);
}

TEST_CASE("4 microbatches and 3 accumulation steps of gradients of 1 a token have the mean 1") {
  for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
    const AccumulationPlan plan = accumulation_plan(kind, 12);
    const ModelState state(parity_gpt2(), 1 << 20, plan.n_buffers());
    Queue queue;
    for (int m = 0; m < 12; ++m) {
      const auto& step = plan.steps[static_cast<std::size_t>(m)];
      const MutView bias = state.gradients(0, step.buffer)[Role::qkv_bias];
      const float of_8_tokens = 8;
      const float before = kind == Accumulation::sequential && m > 0 ? bias.as<float>()[0] : 0;
      fill(bias, before + of_8_tokens);
      state.accumulate(queue, 0, step);
      queue.finish();
    }
    const StepScale scale = step_scale(1, 96, 0, 0);
    CHECK(state.gradients(0, 0)[Role::qkv_bias].as<float>()[5] *
              static_cast<float>(scale.grad_scale) ==
          1.0f);
  }
}

TEST_CASE("leaves that wait for their second use join the tree as they would one by one") {
  for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
    for (int n = 1; n <= 13; ++n) {
      const AccumulationPlan plan = accumulation_plan(kind, n);
      std::vector<float> sums;
      for (int n_pending = 1; n_pending <= n; ++n_pending) {
        INFO(n << " microbatches, " << n_pending << " waiting");
        const ModelState state(parity_gpt2(), 1 << 20, plan.n_buffers());
        TiedGradient tied(state, tied_accumulation(plan), n_pending);
        Queue queue;
        for (int m = 0; m < n + n_pending - 1; ++m) {
          if (m < n) fill(tied.leaf(m), 1.0f / static_cast<float>(m + 3));
          const int joins = m - (n_pending - 1);
          if (joins < 0) continue;
          const MutView leaf = tied.leaf(joins);
          fill(leaf, leaf.as<float>()[0] + 0.1f * static_cast<float>(joins));
          tied.merge(queue, joins);
          queue.finish();
        }
        const auto tensor = static_cast<std::size_t>(state.tied_tensor());
        sums.push_back(state.flat_gradients(0).as<float>()[state.layout().tensor_begin[tensor]]);
        CHECK(sums.back() == sums.front());
      }
    }
  }
}

TEST_CASE("more leaves than the plan counts are a bug that says so") {
  const AccumulationPlan plan = accumulation_plan(Accumulation::tree, 8);
  const ModelState state(parity_gpt2(), 1 << 20, plan.n_buffers());
  TiedGradient tied(state, tied_accumulation(plan), 1);
  for (int m = 0; m < plan.n_buffers(); ++m) tied.leaf(m);
  CHECK_THROWS_AS(tied.leaf(plan.n_buffers()), ContractBroken);
  Queue queue;
  CHECK_THROWS_AS(tied.merge(queue, 1), ContractBroken);  // before 0
}
