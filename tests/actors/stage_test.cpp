#include "actors/stage.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>

#include "actors/decoder_compute.h"
#include "src/comm/loopback/loopback.h"
#include "tests/actors/rig.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr std::int64_t seq_len = 8;

/// One step of a stage whose microbatches of one sample come in any order.
class StageRun {
 public:
  StageRun(const ModelConfig& config, Schedule schedule, int n_flushes,
           Accumulation kind = Accumulation::tree)
      : pipeline_(alone(std::move(schedule))),
        n_microbatches_(n_flushes * pipeline_.n_microbatches),
        network_(rig_.loop, 1, 0),
        decoder_(config),
        state_(config, 4096, accumulation_plan(kind, n_microbatches_).n_buffers()),
        compute_(rig_.queue, compute_plan(kind), decoder_, state_,
                 Port<Ready>([this](std::int64_t key, Ready) { note_ready(key); })),
        stage_(network_.rank(0), rig_.queue, plan(n_flushes), compute_,
               Stage::Outbox{loss_.port(), Sent<LossReport>().port(), Sent<Ready>().port()}) {
    state_.initialize(3);
    draw_samples();
  }

  void run(std::uint64_t seed) {
    std::vector<std::pair<std::int64_t, Microbatch>> messages;
    for (int m = 0; m < n_microbatches_; ++m) {
      const auto at = static_cast<std::size_t>(m);
      messages.emplace_back(m, Microbatch(m, 1, View(tokens_[at].data(), {seq_len}),
                                          View(labels_[at].data(), {seq_len})));
    }
    stage_.parameters_updated().put(0, ParametersUpdated());
    stage_.spawn();
    rig_.loop.spawn("feed", deliver(rig_.loop, stage_.microbatches(),
                                    shuffled(std::move(messages), seed), seed));
    rig_.loop.run();
  }

  Weights gradients() const { return gradients_of(state_); }
  /// By microbatch.
  std::vector<double> losses() const {
    std::map<std::int64_t, double> by_key;
    for (std::size_t i = 0; i < loss_.keys.size(); ++i) {
      REQUIRE(by_key.emplace(loss_.keys[i], loss_.messages[i].sum).second);
    }
    REQUIRE(by_key.size() == static_cast<std::size_t>(n_microbatches_));
    std::vector<double> losses;
    for (const auto& [key, sum] : by_key) {
      REQUIRE(key == static_cast<std::int64_t>(losses.size()));
      losses.push_back(sum);
    }
    return losses;
  }
  /// Holds the gradients of each bucket as it was announced against those of the end.
  void check_announced() const {
    const auto& buckets = state_.layout().buckets;
    REQUIRE(ready_keys_.size() == buckets.size());
    for (std::size_t i = 0; i < ready_keys_.size(); ++i) {
      const auto bucket = static_cast<std::size_t>(ready_keys_[i]);
      INFO("bucket " << bucket);
      const std::vector<float> now = bucket_values(buckets[bucket]);
      REQUIRE(std::memcmp(now.data(), announced_[i].data(), now.size() * 4) == 0);
      if (i > 0) {
        const auto before = static_cast<std::size_t>(ready_keys_[i - 1]);
        REQUIRE(buckets[bucket].ready_after_layer <= buckets[before].ready_after_layer);
      }
    }
  }

 private:
  static Pipeline alone(Schedule schedule) {
    Pipeline pipeline;
    pipeline.n_microbatches = static_cast<int>(schedule.size()) / 2;
    pipeline.schedules = {std::move(schedule)};
    return pipeline;
  }
  DecoderCompute::Plan compute_plan(Accumulation kind) const {
    DecoderCompute::Plan plan;
    plan.chunks = {all_layers(decoder_.config())};
    plan.accumulation = accumulation_plan(kind, n_microbatches_);
    plan.seq_len = seq_len;
    plan.seed = 5;
    return plan;
  }
  Stage::Plan plan(int n_flushes) const {
    Stage::Plan plan;
    plan.pipeline = pipeline_;
    plan.tied = decoder_.config().tie_embeddings;
    plan.microbatch_samples.assign(static_cast<std::size_t>(pipeline_.n_microbatches), 1);
    plan.n_accumulation_steps = n_flushes;
    plan.n_global_microbatches = n_microbatches_;
    plan.seq_len = seq_len;
    plan.width = decoder_.config().hidden_size;
    plan.n_steps = 1;
    plan.loss_scale = 0.125f;
    return plan;
  }
  void draw_samples() {
    RandomSamples source(9, decoder_.config().vocab_size, seq_len, 20);
    for (int m = 0; m < n_microbatches_; ++m) {
      std::vector<std::int32_t>& tokens = tokens_.emplace_back(seq_len);
      std::vector<std::int32_t>& labels = labels_.emplace_back(seq_len);
      source.fetch(m, {tokens.data(), labels.data()});
    }
  }
  std::vector<float> bucket_values(const Bucket& bucket) const {
    const float* const flat = state_.flat_gradients(0).as<float>();
    return {flat + bucket.flat.begin, flat + bucket.flat.end};
  }
  void note_ready(std::int64_t key) {
    ready_keys_.push_back(key);
    announced_.push_back(bucket_values(state_.layout().buckets[static_cast<std::size_t>(key)]));
  }

  Pipeline pipeline_;
  int n_microbatches_;
  Rig rig_;
  LoopbackNetwork network_;
  Decoder decoder_;
  ModelState state_;
  Sent<LossReport> loss_;
  DecoderCompute compute_;
  Stage stage_;
  std::deque<std::vector<std::int32_t>> tokens_;
  std::deque<std::vector<std::int32_t>> labels_;
  std::vector<std::int64_t> ready_keys_;
  std::vector<std::vector<float>> announced_;
};

Schedule schedule_of(const std::string& text) {
  Schedule schedule;
  for (std::size_t i = 0; i < text.size(); i += 3) {
    schedule.push_back(
        {text[i] == 'F' ? Action::Kind::forward : Action::Kind::backward, text[i + 1] - '0'});
  }
  return schedule;
}

}  // namespace

TEST_CASE("a stage's gradients and losses have the same bits under every schedule") {
  for (const ModelConfig& config : {parity_gpt2(0.1f), parity_llama(0.1f), parity_mixtral(0.1f)}) {
    for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
      StageRun expected(config, one_f_one_b(1, 4).schedules[0], 2, kind);
      expected.run(0);
      const std::vector<Schedule> schedules{
          gpipe(1, 4).schedules[0], one_f_one_b(2, 4).schedules[0], one_f_one_b(3, 4).schedules[0],
          schedule_of("F0 F1 B0 F2 F3 B1 B2 B3 ")};
      for (const Schedule& schedule : schedules) {
        INFO(to_string(schedule));
        StageRun run(config, schedule, 2, kind);
        run.run(1);
        REQUIRE(difference(run.gradients(), expected.gradients()) == "");
        REQUIRE(run.losses() == expected.losses());
      }
    }
  }
}

TEST_CASE("the order in which microbatches arrive changes no bit of a stage's gradients") {
  StageRun expected(parity_gpt2(0.1f), gpipe(1, 3).schedules[0], 2);
  expected.run(0);
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("arrival seed " << seed);
    StageRun run(parity_gpt2(0.1f), gpipe(1, 3).schedules[0], 2);
    run.run(seed);
    REQUIRE(difference(run.gradients(), expected.gradients()) == "");
    REQUIRE(run.losses() == expected.losses());
  }
}

TEST_CASE("a bucket is announced once, complete, and the layers from the head down") {
  for (const bool tied : {true, false}) {
    for (const int n_flushes : {1, 3}) {
      ModelConfig config = parity_gpt2(0.1f);
      config.tie_embeddings = tied;
      StageRun run(config, one_f_one_b(1, 2).schedules[0], n_flushes);
      run.run(1);
      run.check_announced();
    }
  }
}

TEST_CASE("losses and gradients of a microbatch do not depend on how many there are") {
  StageRun one(parity_gpt2(0.1f), gpipe(1, 1).schedules[0], 1);
  StageRun five(parity_gpt2(0.1f), gpipe(1, 5).schedules[0], 1);
  one.run(0);
  five.run(0);
  CHECK(five.losses()[0] == one.losses()[0]);
  CHECK(relative_distance(five.gradients(), one.gradients()) > 0.1);
}
