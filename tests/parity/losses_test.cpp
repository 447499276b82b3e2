#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "schedules/partition.h"
#include "tensor/ops/cross_entropy.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr std::int64_t vocab = 31;

/// ln of probabilities: e^-2 for token 0, e^-4 for token 1, the rest alike.
std::vector<float> head_bias() {
  const double rest = (1 - std::exp(-2.0) - std::exp(-4.0)) / (vocab - 2);
  std::vector<float> bias(vocab, static_cast<float>(std::log(rest)));
  bias[0] = -2;
  bias[1] = -4;
  return bias;
}

ModelConfig model_with_bias() {
  ModelConfig model = parity_llama();
  model.lm_head_bias = true;
  return model;
}

/// Six valid tokens with label 0, then two with label 1.
std::vector<ListedSample> six_and_two() {
  constexpr std::int32_t no = ignored_label;
  return {{{5, 6, 7, 8, 9, 10, 11, 12}, {0, 0, no, 0, 0, no, 0, 0}},
          {{13, 3, 2, 9, 20, 30, 11, 4}, {no, 1, no, no, no, no, no, 1}}};
}

struct SampleLayout {
  std::string name;
  int dp;
  std::vector<std::int64_t> microbatch_samples;
  int n_accumulation_steps;
};
std::vector<SampleLayout> layouts_of_two_samples() {
  return {{"one batch", 1, {2}, 1},
          {"two microbatches", 1, {1, 1}, 1},
          {"two accumulation steps", 1, {1}, 2},
          {"two ranks", 2, {1}, 1}};
}

Settings settings_of(const SampleLayout& layout, const ModelConfig& model) {
  return parity_settings(model, layout.dp, layout.microbatch_samples, layout.n_accumulation_steps,
                         1);
}

World::Options six_and_two_options(bool flat_head) {
  World::Options options;
  options.train = [](int) { return std::make_unique<ListedSamples>(six_and_two()); };
  if (!flat_head) return options;
  options.prepare = [](ModelState& state) {
    const std::size_t head = spec_with(state, Role::head_weight);
    set_weights(state, head,
                std::vector<float>(static_cast<std::size_t>(state.specs()[head].n_elements())));
    set_weights(state, spec_with(state, Role::head_bias), head_bias());
  };
  return options;
}

/// What a run's summed gradients are as means over its valid tokens.
Weights mean_gradients(const Settings& settings, const Outcome& outcome) {
  Weights gradients = outcome.gradients;
  const double scale = std::ldexp(1.0, loss_scale_exponent(settings.partition, settings.seq_len)) /
                       static_cast<double>(outcome.reports[0].n_valid);
  for (auto& tensor : gradients) {
    for (float& g : tensor) g = static_cast<float>(double{g} * scale);
  }
  return gradients;
}

}  // namespace

TEST_CASE("6 tokens at loss 2.0 and 2 at 4.0 train at 2.5, over microbatches, steps and ranks") {
  const std::vector<float> bias = head_bias();
  for (const SampleLayout& layout : layouts_of_two_samples()) {
    INFO(layout.name);
    const Settings settings = settings_of(layout, model_with_bias());
    World world(settings, six_and_two_options(true));
    const Outcome outcome = world.run();
    CHECK(outcome.losses[0] == Approx(2.5).epsilon(1e-6));
    CHECK(outcome.reports[0].n_valid == 8);
    // softmax - the share of each label among the eight tokens.
    const Weights gradients = mean_gradients(settings, outcome);
    const auto& head = gradients[spec_with(world.state(0), Role::head_bias)];
    for (std::size_t v = 0; v < vocab; ++v) {
      const double share = v == 0 ? 6.0 / 8 : v == 1 ? 2.0 / 8 : 0.0;
      CHECK(head[v] == Approx(std::exp(double{bias[v]}) - share).margin(1e-7));
    }
  }
}

TEST_CASE("unequal microbatches and ranks have the loss, norm and gradient of one batch") {
  for (const ModelConfig& model : {model_with_bias(), parity_gpt2(0.1f), parity_mixtral(0.1f)}) {
    const Settings one_batch = settings_of(layouts_of_two_samples()[0], model);
    const Outcome expected = World(one_batch, six_and_two_options(false)).run();
    const Weights gradients = mean_gradients(one_batch, expected);
    for (const SampleLayout& layout : layouts_of_two_samples()) {
      for (const Accumulation kind : {Accumulation::tree, Accumulation::sequential}) {
        INFO(layout.name);
        Settings settings = settings_of(layout, model);
        settings.accumulation = kind;
        const Outcome outcome = World(settings, six_and_two_options(false)).run();
        CHECK(outcome.losses[0] == Approx(expected.losses[0]).epsilon(1e-6));
        CHECK(outcome.reports[0].grad_norm == Approx(expected.reports[0].grad_norm).epsilon(1e-6));
        CHECK(relative_distance(mean_gradients(settings, outcome), gradients) <= 1e-6);
        const RouterLosses& router = outcome.router_losses[0];
        CHECK(router.balance == Approx(expected.router_losses[0].balance).epsilon(1e-6));
        CHECK(router.z == Approx(expected.router_losses[0].z).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("12 microbatches of gradient 1 are a gradient of 1, however they are cut") {
  // All samples alike, no dropout: every microbatch has the same gradient, so the mean is it.
  World::Options options;
  options.train = [](int) {
    return std::make_unique<ListedSamples>(std::vector<ListedSample>{six_and_two()[0]});
  };
  const ModelConfig model = parity_gpt2();
  const Settings one = parity_settings(model, 1, {1}, 1, 1);
  const Outcome expected = World(one, options).run();
  for (const int dp : {1, 2, 3}) {
    for (const int per_flush : {1, 2, 4}) {
      const int n_flushes = 12 / dp / per_flush;
      const Settings settings = parity_settings(
          model, dp, std::vector<std::int64_t>(static_cast<std::size_t>(per_flush), 1), n_flushes,
          1);
      INFO("dp " << dp << ", " << n_flushes << " steps of " << per_flush << " microbatches");
      const Outcome outcome = World(settings, options).run();
      CHECK(outcome.reports[0].grad_norm == Approx(expected.reports[0].grad_norm).epsilon(1e-6));
      CHECK(relative_distance(mean_gradients(settings, outcome), mean_gradients(one, expected)) <=
            1e-6);
    }
  }
}

TEST_CASE("a zero head has the loss ln V at step 0 in every layout") {
  int n_layouts = 0;
  for (const std::int64_t n_tokens : {vocab, std::int64_t{50257}}) {
    for (ModelConfig model : {parity_gpt2(0.1f), parity_llama(), parity_mixtral()}) {
      model.vocab_size = n_tokens;
      if (n_tokens > vocab) model.n_layers = 1;
      for (const bool tied : {true, false}) {
        model.tie_embeddings = tied;
        for (const int dp : {1, 2, 3, 4}) {
          if (n_tokens > vocab && (dp > 2 || !tied)) continue;
          for (const auto& samples : {std::vector<std::int64_t>{1}, {3, 3, 2}}) {
            INFO("V " << n_tokens << (tied ? ", tied" : "") << ", dp " << dp << ", "
                      << samples.size() << " microbatches");
            const Settings settings = parity_settings(model, dp, samples, 1, 1);
            World::Options options;
            options.train = [&](int) {
              return std::make_unique<RandomSamples>(1, n_tokens, settings.seq_len, 30);
            };
            options.prepare = [&](ModelState& state) {
              const std::size_t head =
                  spec_with(state, tied ? Role::token_embedding : Role::head_weight);
              set_weights(state, head, std::vector<float>(weights_of(state)[head].size()));
            };
            const Outcome outcome = World(settings, options).run();
            CHECK(outcome.losses[0] ==
                  Approx(std::log(static_cast<double>(n_tokens))).epsilon(1e-6));
            ++n_layouts;
          }
        }
      }
    }
  }
  CHECK(n_layouts == 60);
}
