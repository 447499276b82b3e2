#include <catch2/catch.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Eight blocks would do for any split; six make them uneven.
ModelConfig deep(ModelConfig model, bool tied) {
  model.n_layers = 6;
  model.tie_embeddings = tied;
  return model;
}

/// `n` microbatches a flush of one sample each but for the first, which has two.
Settings flush_of(const ModelConfig& model, int dp, int n, int n_flushes) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(n), 1);
  samples.front() = 2;
  return parity_settings(model, dp, samples, n_flushes, 5);
}

struct NamedChoice {
  std::string name;
  PipelineChoice choice;
};

std::vector<NamedChoice> choices(int n_ranks) {
  std::vector<NamedChoice> all;
  all.push_back({"gpipe", {.schedule = ScheduleKind::gpipe, .n_ranks = n_ranks}});
  all.push_back({"1f1b", {.schedule = ScheduleKind::one_f_one_b, .n_ranks = n_ranks}});
  return all;
}

}  // namespace

TEST_CASE("P2: pipelines of 2, 3 and 4 ranks have the bits of one rank") {
  for (const bool tied : {true, false}) {
    for (const float dropout : {0.0f, 0.1f}) {
      for (const int n : {1, 2, 3, 5, 8}) {
        const Settings one = flush_of(deep(parity_gpt2(dropout), tied), 1, n, 1);
        const Outcome expected = run_world(one, 1, 20);
        for (const int pp : {1, 2, 3, 4}) {
          for (const NamedChoice& named : choices(pp)) {
            for (const bool recompute : {false, true}) {
              INFO(named.name << " on " << pp << " ranks, " << n << " microbatches, "
                              << (tied ? "tied" : "untied") << ", dropout " << dropout
                              << (recompute ? ", recompute" : ""));
              Settings settings = one;
              set_pipeline(settings, named.choice);
              settings.recompute_blocks = recompute;
              check_same(run_world(settings, static_cast<std::uint64_t>(n), 20), expected);
            }
          }
        }
      }
    }
  }
}
