#include "src/train/settings.h"

#include <catch2/catch.hpp>

#include "schedules/pipeline_file.h"
#include "src/base/error.h"
#include "src/train/settings_from_config.h"
#include "tests/config/support.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

Settings settings_of_eight() {
  Settings settings;
  settings.partition = {.microbatch_samples = {2, 2}, .n_accumulation_steps = 1, .dp = 2};
  return settings;
}

/// Settings of a model of 6 blocks with 4 microbatches.
Settings settings_with(const std::string& fields, std::int64_t n_ranks,
                       const std::string& schedule_text = "") {
  const LoadedConfig loaded = test::load(
      "model: {num_layers: 6, vocab_size: 64, hidden_size: 64}\n"
      "distributed: {pp_n_microbatches: 4, parallel_strategy: pp, " +
      fields + "}");
  return settings_from(loaded, n_ranks, false, schedule_text);
}

std::vector<std::int64_t> block_counts(const Settings& settings) {
  std::vector<std::int64_t> counts;
  for (const Range& layers : settings.stage_layers) counts.push_back(layers.size());
  --counts.front();
  --counts.back();
  return counts;
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
  for (const ModelConfig& model : {parity_gpt2(), parity_llama(), parity_mixtral()}) {
    const LayerCosts costs = layer_costs(model, 8);
    CHECK(costs.blocks.size() == 2);
    CHECK(costs.head == 6.0 * 31 * 16);
    CHECK(costs.embedding == 6.0 * 16);
    CHECK(costs.blocks[0] + costs.blocks[1] + costs.head ==
          Approx(flops_per_token(model, 8)).epsilon(1e-12));
  }
}

TEST_CASE("each schedule's name makes its pipeline") {
  using Counts = std::vector<std::int64_t>;
  CHECK(settings_with("pp_schedule: gpipe", 3).pipeline == gpipe(3, 4));
  CHECK(settings_with("pp_schedule: 1f1b", 3).pipeline == one_f_one_b(3, 4));
  CHECK(settings_with("pp_schedule: zero_bubble", 3).pipeline == zero_bubble(3, 4));
  CHECK(settings_with("pp_schedule: zero_bubble_v", 3).pipeline == zero_bubble_v(3, 4));
  const Settings chunks = settings_with("pp_schedule: interleaved, pp_virtual_stages: 2", 3);
  CHECK(chunks.pipeline == interleaved({.n_ranks = 3, .n_chunks = 2, .n_microbatches = 4}));
  CHECK(block_counts(chunks) == Counts{1, 1, 1, 1, 1, 1});
  CHECK(block_counts(settings_with("pp_schedule: 1f1b", 3)) == Counts{2, 2, 2});
  const Settings split = settings_with("pp_size: 3, pp_split: \"3,2,1\"", 6);
  CHECK(block_counts(split) == Counts{3, 2, 1});
  CHECK(split.grid == Grid{2, 3, 1});
  CHECK(split.partition.dp == 2);
  const Settings one = settings_with("pp_schedule: 1f1b", 1);
  CHECK(one.pipeline == one_f_one_b(1, 4));
  CHECK(one.stage_layers == std::vector<Range>{{-1, 7}});
}

TEST_CASE("a head that costs as much as blocks takes their place on the last stage") {
  Settings settings = parity_settings(parity_gpt2(), 1, {1, 1}, 1, 1);
  settings.model.n_layers = 8;
  settings.model.vocab_size = 2000;
  set_pipeline(settings, {.n_ranks = 2});
  CHECK(block_counts(settings).back() < 3);
  set_pipeline(settings, {.n_ranks = 2, .n_blocks = {4, 4}});
  CHECK(block_counts(settings) == std::vector<std::int64_t>{4, 4});
}

TEST_CASE("gradient checkpointing by block recomputes blocks") {
  const auto recomputes = [](const char* value) {
    const LoadedConfig loaded =
        test::load("optimization: {gradient_checkpointing: " + std::string(value) + "}");
    return settings_from(loaded, 1, false).recompute_blocks;
  };
  CHECK(recomputes("block"));
  CHECK(recomputes("true"));
  CHECK_FALSE(recomputes("none"));
  CHECK_FALSE(settings_from(test::load(""), 1, false).recompute_blocks);
}

TEST_CASE("a schedule's file is the pipeline, where it fits the other fields") {
  const std::string file = "pp_schedule: \"file:s.txt\"";
  const Pipeline own = one_f_one_b(3, 4);
  CHECK(settings_with(file, 3, pipeline_text(own)).pipeline == own);
  const Pipeline v = zero_bubble_v(3, 4);
  CHECK(settings_with(file, 3, pipeline_text(v)).pipeline == v);
  CHECK(settings_with(file + ", pp_virtual_stages: 2", 3, pipeline_text(v)).pipeline == v);

  const auto refusal_of = [](const std::string& fields, int n_ranks, const std::string& text) {
    return test::refusal([&] { settings_with(fields, n_ranks, text); });
  };
  const std::string place = "c.yaml:2:73: distributed.pp_schedule: s.txt";
  CHECK(refusal_of(file, 2, pipeline_text(own)) ==
        place + " has 3 ranks, but this run's pipelines have 2; write 2 lines with a schedule");
  CHECK(refusal_of(file, 3, pipeline_text(one_f_one_b(3, 5))) ==
        place + " has 5 microbatches, but distributed.pp_n_microbatches is 4; make them equal");
  CHECK(refusal_of(file + ", pp_virtual_stages: 3", 3, pipeline_text(v)) ==
        place +
            " has 2 chunks a rank, but distributed.pp_virtual_stages is 3; remove that field, "
            "the file says it");
  CHECK(refusal_of(file, 3, "F0 B0\nF0 X0\n") ==
        place +
            ":2: X0 is no action; write F, B, I or W with a microbatch, and a chunk where a "
            "rank has several: F0, B3.1, or as a pair F1|B0");
  CHECK(refusal_of(file, 1, "F0 F1 F2 F3 B0 B2 B1 B3") ==
        place +
            ":1: rank 0: B2 stands before B1; the backwards of a chunk run in microbatch "
            "order");
  CHECK_THAT(refusal_of(file, 4, pipeline_text(zero_bubble_v(4, 4))),
             Catch::Contains("model.num_layers is 6"));
}

TEST_CASE("a schedule's file that cannot be read is named with its field") {
  const LoadedConfig loaded = test::load("distributed: {pp_schedule: \"file:no/such.txt\"}");
  const std::string message = test::refusal([&] { read_schedule(loaded); });
  CHECK_THAT(message,
             Catch::StartsWith("c.yaml:1:28: distributed.pp_schedule: cannot open no/such.txt: "));
  CHECK(read_schedule(test::load("")).empty());
}

TEST_CASE("settings whose pipeline is not theirs are found") {
  Settings settings = parity_settings(parity_gpt2(), 1, {1, 1}, 1, 1);
  CHECK_NOTHROW(check_pipeline(settings));
  settings.model.n_layers = 3;
  CHECK_THROWS_AS(check_pipeline(settings), ContractBroken);
  set_pipeline(settings);
  settings.partition.microbatch_samples = {1};
  CHECK_THROWS_AS(check_pipeline(settings), ContractBroken);
  set_pipeline(settings, {.n_ranks = 2});
  settings.grid.pp = 1;
  CHECK_THROWS_AS(check_pipeline(settings), ContractBroken);
}
