#include "src/train/pipeline_report.h"

#include <catch2/catch.hpp>

#include "src/train/plan_report.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// A model of 8 blocks as a pipeline, with a vocabulary that makes its head small.
Settings pipeline_settings(const PipelineChoice& choice, std::size_t n_microbatches, int dp = 1) {
  ModelConfig model = parity_llama();
  model.n_layers = 8;
  model.vocab_size = 8;
  Settings settings =
      parity_settings(model, dp, std::vector<std::int64_t>(n_microbatches, 2), 1, 2);
  set_pipeline(settings, choice);
  return settings;
}

PipelineChoice choice_of(ScheduleKind kind, int n_ranks) {
  const bool has_chunks = kind == ScheduleKind::interleaved || kind == ScheduleKind::zero_bubble_v;
  return {.schedule = kind, .n_ranks = n_ranks, .n_chunks = has_chunks ? 2 : 1};
}

constexpr ScheduleKind all_kinds[] = {
    ScheduleKind::gpipe,       ScheduleKind::one_f_one_b, ScheduleKind::one_f_one_b_pairs,
    ScheduleKind::interleaved, ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v};

void check_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    INFO(part << " in\n" << text);
    CHECK(text.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("the plan of a pipeline has stages, bytes of each rank, a timeline and its bubble") {
  const std::string text = plan_text(pipeline_settings({.n_ranks = 4}, 4, 2), 8);
  check_has(text,
            {"[dp 2][pp 4][tp 1]: 8 ranks on 1 node of 8", "stages   4 on 4 ranks, 4 microbatches",
             "  0      0      embedding, blocks 0-1", "  3      3      blocks 6-7, head",
             "MiB of each rank of a pipeline", "  4 microbatches\n", "  1 microbatch\n",
             "flush of 4 microbatches on a virtual clock\n  rank 0     F0 F1 F2 F3 ...", "makespan",
             ", by rank 4", "warning: the ranks of a pipeline are expected to wait for 4",
             "which holds most", "rank 7 "});
  PipelineChoice zig_zag = choice_of(ScheduleKind::zero_bubble_v, 2);
  zig_zag.n_blocks = {1, 2, 3, 2};
  check_has(plan_text(pipeline_settings(zig_zag, 40), 8),
            {"  0      0      embedding, block 0 ", "  2      1      blocks 3-5",
             "microbatches of a chunk", "in order: too wide to be drawn\n  rank 0     F0.0 F1.0"});
  CHECK(plan_text(pipeline_settings({}, 4), 1).find("stages\n  stage") == std::string::npos);
}

TEST_CASE("tables and timelines of a pipeline fit into 120 columns") {
  for (const ScheduleKind kind : all_kinds) {
    for (const int n_ranks : {2, 4}) {
      for (const std::size_t n : {1u, 4u, 8u, 16u, 100u}) {
        const std::string text = pipeline_report(pipeline_settings(choice_of(kind, n_ranks), n));
        INFO(text);
        for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
          if (text.compare(begin, 7, "warning") == 0) continue;
          REQUIRE(text.find('\n', begin) - begin <= 120);
        }
      }
    }
  }
}

TEST_CASE("the virtual clock's costs are the stages' operations, and recomputing adds forwards") {
  for (const bool recompute : {false, true}) {
    Settings settings = pipeline_settings({.n_ranks = 4}, 4);
    settings.model.vocab_size = 3000;
    set_pipeline(settings, {.n_ranks = 4, .n_blocks = {1, 2, 3, 2}});
    settings.recompute_blocks = recompute;
    const PipelineCosts costs = pipeline_costs(settings);
    const std::vector<double> flops =
        stage_costs(layer_costs(settings.model, settings.seq_len), settings.stage_layers);
    double forwards = 0;
    for (std::size_t stage = 0; stage < 4; ++stage) {
      const ActionCosts& c = costs.by_stage[stage];
      forwards += c.forward;
      CHECK(c.backward == Approx(c.backward_input + c.backward_weight));
      const double together = c.forward + c.backward - (recompute ? c.forward : 0);
      CHECK(together / (costs.by_stage[0].forward * 3) == Approx(flops[stage] / flops[0]));
    }
    CHECK(forwards == Approx(4));
    CHECK(costs.by_stage[3].backward > 2 * costs.by_stage[1].backward);  // the head
  }
}

TEST_CASE("a bubble over a fifth is warned about with the least number that helps") {
  const auto warning = [](ScheduleKind kind, int n_ranks, int n_microbatches) {
    return bubble_warning(
        pipeline_settings(choice_of(kind, n_ranks), static_cast<std::size_t>(n_microbatches)));
  };
  for (const ScheduleKind kind : all_kinds) {
    for (const int n_ranks : {2, 4}) {
      const std::string text = warning(kind, n_ranks, 1);
      INFO(text);
      const std::string field = "distributed.pp_n_microbatches: ";
      REQUIRE(text.find(field) != std::string::npos);
      const int n = std::stoi(text.substr(text.find(field) + field.size()));
      CHECK(warning(kind, n_ranks, n).empty());
      CHECK_FALSE(warning(kind, n_ranks, n - 1).empty());
      const bool is_more_than_the_batch = n > 2;
      CHECK((text.find("training.batch_size of ") != std::string::npos) == is_more_than_the_batch);
    }
    CHECK(warning(kind, 1, 1).empty());
  }
}

TEST_CASE("where more microbatches do not help the warning names what does") {
  const Settings uneven = pipeline_settings({.n_ranks = 2, .n_blocks = {7, 1}}, 16);
  check_has(bubble_warning(uneven), {"even stages (pp_split)"});
  Settings file = pipeline_settings({}, 1);
  set_pipeline(file, one_f_one_b(4, 1), {});
  CHECK(bubble_warning(file).find("pp_n_microbatches") == std::string::npos);
}

TEST_CASE("pairs that are not there, or that hide nothing, are warned about") {
  const auto warning = [](ScheduleKind kind, int tp, std::size_t n_microbatches) {
    Settings settings = pipeline_settings(choice_of(kind, 2), n_microbatches);
    settings.grid.tp = tp;
    return pairs_warning(settings);
  };
  constexpr ScheduleKind pairs = ScheduleKind::one_f_one_b_pairs;
  CHECK(warning(pairs, 2, 1) ==
        "warning: distributed.pp_schedule 1f1b_pairs has no pairs with "
        "distributed.pp_n_microbatches 1; use 2 or more");
  CHECK(
      warning(pairs, 1, 2) ==
      "warning: the pairs of distributed.pp_schedule cost memory and hide nothing, since no layer "
      "waits for other ranks (tp_size 1, experts on one rank); use 1f1b");
  CHECK(warning(pairs, 2, 2).empty());
  CHECK(warning(ScheduleKind::one_f_one_b, 1, 1).empty());
}
