#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "schedules/pipeline_file.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

struct PairLayout {
  std::string name;
  Grid grid;
  bool spreads_experts = false;
};

const std::vector<PairLayout> layouts = {{"tp 2", {1, 1, 2}},
                                         {"dp 2, tp 2", {2, 1, 2}},
                                         {"pp 2, tp 2", {1, 2, 2}},
                                         {"dp 2, experts spread", {2, 1, 1}, true}};

Settings four_microbatches(const ModelConfig& model, const PairLayout& layout) {
  Settings settings = parity_settings(model, layout.grid.dp, {1, 2, 1, 1}, 1, 3);
  settings.grid = layout.grid;
  settings.spreads_experts = layout.spreads_experts;
  settings.unit_min_parameters = 1;
  return settings;
}

Outcome run(Settings settings, ScheduleKind kind) {
  set_pipeline(settings, {.schedule = kind, .n_ranks = settings.grid.pp});
  return run_world(settings, 4, 20);
}

Outcome run_file(Settings settings, const std::string& text) {
  set_pipeline(settings, read_pipeline("s.txt", text), {});
  return run_world(settings, 4, 20);
}

}  // namespace

TEST_CASE("P2: pairs change no bit, in any layout, under ZeRO and recomputation") {
  for (const PairLayout& layout : layouts) {
    for (const bool tied : {false, true}) {
      ModelConfig model = layout.spreads_experts ? parity_mixtral(0.1f) : parity_llama(0.1f);
      model.tie_embeddings = tied;
      Settings settings = four_microbatches(model, layout);
      for (const bool sequence : {false, true}) {
        if (sequence && layout.grid.tp == 1) continue;
        settings.sequence_parallel = sequence;
        const Outcome expected = run(settings, ScheduleKind::one_f_one_b);
        for (int zero_stage = 0; zero_stage <= (layout.grid.dp > 1 ? 3 : 0); ++zero_stage) {
          for (const bool recompute : {false, true}) {
            INFO(layout.name << (tied ? ", tied" : "") << (sequence ? ", rows cut" : "")
                             << ", zero " << zero_stage << (recompute ? ", recomputed" : ""));
            settings.zero_stage = zero_stage;
            settings.recompute_blocks = recompute;
            check_same(run(settings, ScheduleKind::one_f_one_b_pairs), expected);
          }
        }
        settings.zero_stage = 0;
        settings.recompute_blocks = false;
      }
    }
  }
}

TEST_CASE("P2: pairs with halves of backwards, and of several chunks, change no bit") {
  const PairLayout layout = layouts[1];
  for (const int zero_stage : {0, 3}) {
    Settings settings = four_microbatches(parity_llama(0.1f), layout);
    settings.zero_stage = zero_stage;
    const Outcome expected = run(settings, ScheduleKind::one_f_one_b);
    for (const std::string text : {"F0 F1|I0 W0 F2|I1 F3|W1 B2 B3",
                                   "F0.0 F1.0 F0.1 F2.0|B0.1 F1.1|B0.0 F2.1|B1.1 F3.0|B1.0 "
                                   "F3.1|B2.1 I2.0 W2.0 B3.1 B3.0"}) {
      for (const int n_ahead : {0, 1, 3}) {
        for (const bool reshard : {true, false}) {
          INFO(text << ", zero " << zero_stage << ", " << n_ahead << " ahead"
                    << (reshard ? "" : ", kept"));
          settings.gather_policy = {n_ahead, reshard};
          check_same(run_file(settings, text), expected);
          if (zero_stage == 0) break;
        }
        if (zero_stage == 0) break;
      }
    }
  }
}

TEST_CASE("P1: bf16 pairs on tensor-parallel mixtures give the same bits, whatever the timing") {
  ModelConfig model = parity_mixtral(0.1f);
  model.compute = Dtype::bf16;
  Settings settings = four_microbatches(model, layouts[0]);
  const Outcome expected = run(settings, ScheduleKind::one_f_one_b);
  set_pipeline(settings, {.schedule = ScheduleKind::one_f_one_b_pairs});
  for (std::uint64_t seed = 0; seed < n_delivery_seeds(6, 6); ++seed) {
    check_same(run_world(settings, seed, 20), expected);
  }
}
