#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Samples that repeat one token: all tokens of a sample visit the same experts of block 0.
World::Options repeated(const std::vector<std::int32_t>& tokens) {
  std::vector<ListedSample> samples;
  for (const std::int32_t token : tokens) {
    samples.push_back({std::vector<std::int32_t>(8, token), {2, 3, 4, 5, 6, 7, 8, 9}});
  }
  World::Options options;
  options.train = [samples](int) { return std::make_unique<ListedSamples>(samples); };
  return options;
}

/// The gradients of block 0's experts, of the matrices before their activation.
std::vector<std::vector<float>> expert_gradients(World& world, const Outcome& outcome) {
  const std::vector<float>& all = outcome.gradients[spec_with(world.state(0), Role::up_weight)];
  const std::size_t n = all.size() / 4;
  std::vector<std::vector<float>> experts;
  for (auto begin = all.begin(); begin != all.end(); begin += static_cast<std::ptrdiff_t>(n)) {
    experts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(n));
  }
  return experts;
}

bool is_zero(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float x_i) { return x_i == 0; });
}

Settings settings_of(int dp, std::vector<std::int64_t> samples, int n_flushes) {
  return parity_settings(parity_mixtral(), dp, std::move(samples), n_flushes, 1);
}

std::vector<std::vector<float>> run_experts(const Settings& settings,
                                            const std::vector<std::int32_t>& tokens) {
  World world(settings, repeated(tokens));
  const Outcome outcome = world.run();
  return expert_gradients(world, outcome);
}

}  // namespace

TEST_CASE("an expert that only the first microbatch visits has that microbatch's gradient") {
  const auto first = run_experts(settings_of(1, {1}, 1), {1});
  std::vector<std::vector<float>> second;
  std::int32_t other = 1;  // a token that leaves alone an expert that token 1 visits
  const auto left_alone = [&] {
    for (std::size_t e = 0; e < 4; ++e) {
      if (!is_zero(first[e]) && is_zero(second[e])) return true;
    }
    return false;
  };
  do {
    REQUIRE(++other < 31);
    second = run_experts(settings_of(1, {1}, 1), {other});
  } while (!left_alone());
  for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
    for (const int dp : {1, 2}) {
      Settings settings = settings_of(dp, {1}, 2 / dp);
      settings.accumulation = kind;
      const auto both = run_experts(settings, {1, other});
      for (std::size_t e = 0; e < 4; ++e) {
        INFO("dp " << dp << ", expert " << e);
        if (is_zero(second[e])) {
          CHECK((both[e] == first[e]));
        } else if (!is_zero(first[e])) {
          CHECK((both[e] != first[e]));
        }
      }
    }
  }
}

TEST_CASE("experts that no rank's tokens visit stall nobody and keep gradients of exactly 0") {
  for (const int dp : {1, 2}) {
    for (const int pp : {1, 2}) {
      for (const int zero_stage : {0, 1, 2, 3}) {
        INFO("dp " << dp << ", pp " << pp << ", zero " << zero_stage);
        Settings settings = settings_of(dp, {1, 1}, 2);
        settings.model.n_layers = pp;
        settings.n_steps = settings.optimizer.lr.n_steps = 3;
        settings.optimizer.lr.peak = 0;  // the routers stay even
        settings.zero_stage = zero_stage;
        set_pipeline(settings, {.schedule = ScheduleKind::zero_bubble, .n_ranks = pp});
        World::Options options;
        options.train = [](int) { return std::make_unique<RandomSamples>(1, 31, 8); };
        options.prepare = [](ModelState& state) {
          // Equal logits: experts 0 and 1 get everything.
          const std::size_t router = spec_with(state, Role::router_weight);
          set_weights(
              state, router,
              std::vector<float>(static_cast<std::size_t>(state.specs()[router].n_elements())));
        };
        World world(settings, options);
        const Outcome outcome = world.run();
        REQUIRE(outcome.losses.size() == 3);
        const auto experts = expert_gradients(world, outcome);
        CHECK(!is_zero(experts[0]));
        CHECK(!is_zero(experts[1]));
        CHECK(is_zero(experts[2]));
        CHECK(is_zero(experts[3]));
      }
    }
  }
}
