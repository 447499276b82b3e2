#include "actors/data_feed.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tensor/ops/cross_entropy.h"
#include "tests/actors/rig.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr std::int64_t sample_len = 4;

/// Sample j has the tokens 100 j, 100 j + 1, ... and the labels one more.
class CountingSamples : public SampleSource {
 public:
  std::int64_t seq_len() const override { return sample_len; }
  std::int64_t n_samples() const override { return 1 << 20; }
  void fetch(std::int64_t position, SampleOut out) override {
    fetched.push_back(position);
    for (std::int64_t i = 0; i < sample_len; ++i) {
      out.tokens[i] = static_cast<std::int32_t>(100 * position + i);
      out.labels[i] = out.tokens[i] + 1;
    }
    if (position % 3 == 1) out.labels[2] = ignored_label;
  }
  std::string state() const override { return "{}"; }
  void restore(const std::string&) override {}
  std::vector<std::int64_t> fetched;
};

/// Positions of the samples that a microbatch holds now.
std::vector<std::int64_t> positions_in(const Microbatch& microbatch) {
  std::vector<std::int64_t> positions;
  const std::int32_t* const tokens = microbatch.tokens.as<std::int32_t>();
  for (std::int64_t i = 0; i < microbatch.batch; ++i) {
    positions.push_back(tokens[i * sample_len] / 100);
    for (std::int64_t t = 0; t < sample_len; ++t) {
      REQUIRE(tokens[i * sample_len + t] == 100 * positions.back() + t);
    }
  }
  return positions;
}

struct Feed {
  Feed(Partition partition, int dp_rank, std::int64_t n_steps)
      : plan{.partition = std::move(partition),
             .dp_rank = dp_rank,
             .rank = dp_rank,
             .n_ranks = plan.partition.dp,
             .first_step = 0,
             .n_steps = n_steps},
        feed(rig.loop, plan, source, [this] { return stop_requested; },
             {microbatch.port(), facts.port()}) {
    rig.loop.spawn("feed", feed.run());
  }
  /// The optimizer has finished step - 1.
  bool updated(std::int64_t step, bool stop = false) {
    feed.parameters_updated().put(step, ParametersUpdated{stop});
    return rig.loop.run_until_idle();
  }
  std::vector<std::int64_t> positions_of(std::int64_t step) const {
    std::vector<std::int64_t> all;
    const std::int64_t n = plan.partition.n_microbatches();
    for (std::int64_t m = 0; m < n; ++m) {
      const auto at = static_cast<std::size_t>(step * n + m);
      REQUIRE(microbatch.keys[at] == step * n + m);
      for (const std::int64_t position : positions_in(microbatch.messages[at])) {
        all.push_back(position);
      }
    }
    return all;
  }

  Rig rig;
  bool stop_requested = false;
  CountingSamples source;
  DataFeed::Plan plan;
  Sent<Microbatch> microbatch;
  Sent<StepFacts> facts;
  DataFeed feed;
};

std::vector<std::int64_t> counted(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = begin; i < end; ++i) all.push_back(i);
  return all;
}

}  // namespace

TEST_CASE("the ranks' feeds cover each step's samples once, whatever the number of ranks") {
  for (const int dp : {1, 2, 4}) {
    std::vector<std::vector<std::int64_t>> by_step(3);
    for (int rank = 0; rank < dp; ++rank) {
      Feed feed({{2, 1, 1}, 4 / dp, dp}, rank, 3);
      for (std::int64_t step = 0; step < 3; ++step) {
        feed.updated(step);
        const std::vector<std::int64_t> own = feed.positions_of(step);
        auto& all = by_step[static_cast<std::size_t>(step)];
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    for (std::int64_t step = 0; step < 3; ++step) {
      CHECK(by_step[static_cast<std::size_t>(step)] == counted(16 * step, 16 * (step + 1)));
    }
  }
}

TEST_CASE("a microbatch says its place in the step's global batch, and the facts its labels") {
  Feed feed({{2, 1}, 1, 2}, 1, 2);
  feed.updated(0);
  REQUIRE(feed.microbatch.messages.size() >= 2);
  CHECK(feed.microbatch.messages[0].first_sample == 3);
  CHECK(feed.microbatch.messages[1].first_sample == 5);
  CHECK(feed.microbatch.messages[1].batch == 1);
  // Samples 3, 4, 5 of which 4 has one label ignored; then 9, 10, 11 of which 10 has.
  CHECK(feed.facts.keys == std::vector<std::int64_t>{1, 3});
  CHECK(feed.facts.messages[0].n_valid == 11);
  CHECK(feed.facts.messages[1].n_valid == 11);
}

TEST_CASE("the feed is one step ahead and never overwrites a step that is not over") {
  const std::int64_t n_steps = 6;
  Feed feed({{2, 1}, 1, 1}, 0, n_steps);
  CHECK_FALSE(feed.rig.loop.run_until_idle());
  CHECK(feed.source.fetched == counted(0, 3));
  for (std::int64_t step = 0; step < n_steps; ++step) {
    const bool done = feed.updated(step);  // the stage computes `step` now
    CHECK(done == (step == n_steps - 1));
    CHECK(feed.positions_of(step) == counted(3 * step, 3 * step + 3));
    const std::int64_t n_fed = std::min(n_steps, step + 2);
    CHECK(feed.source.fetched == counted(0, 3 * n_fed));
    if (step + 1 < n_steps) {
      CHECK(feed.positions_of(step + 1) == counted(3 * step + 3, 3 * step + 6));
    }
  }
}

TEST_CASE("a stop is told with the facts of the next step to be fed, and ends the feed") {
  Feed feed({{1}, 1, 1}, 0, 10);
  feed.updated(0);
  feed.stop_requested = true;
  feed.updated(1);
  REQUIRE(feed.facts.messages.size() == 3);
  CHECK(feed.facts.messages[1].stop_requested == 0);
  CHECK(feed.facts.messages[2].stop_requested == 1);
  CHECK_FALSE(feed.updated(2));
  CHECK(feed.updated(3, true));
}

TEST_CASE("validation feeds give each sample once a round and keep the two last microbatches") {
  for (const int dp : {1, 2, 3, 7}) {
    const std::int64_t n_samples = 11, n_rounds = 3;
    const ValidationPlan validation{1, n_rounds, n_samples, 2};
    std::vector<std::int64_t> all;
    for (int rank = 0; rank < dp; ++rank) {
      Rig rig;
      CountingSamples source;
      Sent<Microbatch> sent;
      const Range own = validation.microbatches(rank, dp);
      ValidationFeed feed(rig.loop, {own, 2, n_samples, n_rounds}, source, sent.port());
      rig.loop.spawn("validation", feed.run());
      rig.loop.run_until_idle();
      CHECK(source.fetched.empty());
      for (std::int64_t key = 0; key < n_rounds * own.size(); ++key) {
        feed.wanted().put(key, Ready{});
        rig.loop.run_until_idle();
        REQUIRE(sent.keys.back() == key);
        const auto newest = positions_in(sent.messages.back());
        if (key >= 1) {
          // What the stage may still compute is as it was sent.
          const auto& before = sent.messages[sent.messages.size() - 2];
          CHECK(positions_in(before).front() == before.first_sample);
        }
        all.insert(all.end(), newest.begin(), newest.end());
      }
      CHECK(rig.loop.all_done());
    }
    std::sort(all.begin(), all.end());
    REQUIRE(all.size() == 33);
    for (std::size_t i = 0; i < all.size(); ++i) {
      REQUIRE(all[i] == static_cast<std::int64_t>(i / 3));
    }
  }
}
