#include "src/train/settings.h"

#include <catch2/catch.hpp>

#include "tests/parity/world.h"

using namespace llm;

namespace {

Settings settings_of_eight() {
  Settings settings;
  settings.partition = {.microbatch_samples = {2, 2}, .n_accumulation_steps = 1, .dp = 2};
  return settings;
}

}  // namespace

TEST_CASE("a run has as many steps as whole batches fit into its epochs together") {
  Settings settings = settings_of_eight();
  set_length(settings, {.n_samples = 20, .epochs = 1});
  CHECK(settings.n_steps == 2);
  set_length(settings, {.n_samples = 20, .epochs = 2});
  CHECK(settings.n_steps == 5);  // 40 samples: what one epoch leaves over, the next one uses
  set_length(settings, {.n_samples = 20, .epochs = 2, .max_steps = 3});
  CHECK(settings.n_steps == 3);
  set_length(settings, {.n_samples = 20, .epochs = 2, .max_steps = 30});
  CHECK(settings.n_steps == 5);
  set_length(settings, {.n_samples = 3, .epochs = 1});
  CHECK(settings.n_steps == 1);
}

TEST_CASE("the learning rate's last step is the run's") {
  for (const std::int64_t max_steps : {1, 2, 5, 100}) {
    Settings settings = settings_of_eight();
    settings.optimizer.lr = {.peak = 1, .min_ratio = 0.25};
    set_length(settings, {.n_samples = 1 << 20, .epochs = 1, .max_steps = max_steps});
    REQUIRE(settings.n_steps == max_steps);
    CHECK(settings.optimizer.lr.n_steps == max_steps);
    const double last = learning_rate(settings.optimizer.lr, max_steps - 1);
    CHECK(last == (max_steps == 1 ? 1 : 0.25));
  }
}

TEST_CASE("wsd without a length decays over the last tenth of the run") {
  Settings settings = settings_of_eight();
  settings.optimizer.lr = {
      .shape = LrShape::wsd, .peak = 1, .min_ratio = 0, .decay_steps = wsd_tenth};
  set_length(settings, {.n_samples = 1 << 20, .epochs = 1, .max_steps = 200});
  CHECK(learning_rate(settings.optimizer.lr, 179) == 1);
  CHECK(learning_rate(settings.optimizer.lr, 180) < 1);
  CHECK(learning_rate(settings.optimizer.lr, 199) == 0);
}

TEST_CASE("validation follows each epoch, or as asked, and the last step") {
  Settings settings = settings_of_eight();
  set_length(settings, {.n_samples = 24, .epochs = 3, .n_validation_samples = 5});
  CHECK(settings.validation.interval_steps == 3);
  CHECK(settings.validation.n_rounds(0) == 3);
  CHECK(settings.validation.microbatch_samples == 2);
  set_length(settings,
             {.n_samples = 24, .epochs = 3, .validation_interval = 4, .n_validation_samples = 5});
  CHECK(settings.validation.n_rounds(0) == 3);  // after steps 3, 7 and 8
  set_length(settings, {.n_samples = 24, .epochs = 3});
  CHECK(settings.validation.n_rounds(0) == 0);
}

TEST_CASE("the loss scale does not depend on how ranks share the microbatches") {
  for (const int dp : {1, 2, 4}) {
    CHECK(loss_scale_exponent({{2, 1}, 4 / dp, dp}, 8) == 4);
  }
}

TEST_CASE("the costs of all layers are the model's operations, and the embedding is not free") {
  for (const ModelConfig& model : {parity_gpt2(), parity_llama()}) {
    const LayerCosts costs = layer_costs(model, 8);
    CHECK(costs.blocks.size() == 2);
    CHECK(costs.head == 6.0 * 31 * 16);
    CHECK(costs.embedding == 6.0 * 16);
    CHECK(costs.blocks[0] + costs.blocks[1] + costs.head ==
          Approx(flops_per_token(model, 8)).epsilon(1e-12));
  }
}
