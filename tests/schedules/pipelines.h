#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "schedules/pipeline.h"

namespace llm::test {

struct NamedPipeline {
  std::string name;
  PipelineShape shape;
  Pipeline pipeline;
};

/// Every schedule on 1 to 8 ranks with 1 to 16 microbatches, interleaved with 1 to 4 chunks.
inline std::vector<NamedPipeline> all_pipelines() {
  std::vector<NamedPipeline> all;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      const auto add = [&](const std::string& name, int n_chunks, Pipeline pipeline) {
        all.push_back({name + " on " + std::to_string(p) + " ranks, " + std::to_string(n_chunks) +
                           " chunks, " + std::to_string(m) + " microbatches",
                       {.n_ranks = p, .n_chunks = n_chunks, .n_microbatches = m},
                       std::move(pipeline)});
      };
      add("gpipe", 1, gpipe(p, m));
      add("1f1b", 1, one_f_one_b(p, m));
      add("1f1b_pairs", 1, one_f_one_b_pairs(p, m));
      add("zero_bubble", 1, zero_bubble(p, m));
      add("zero_bubble_v", 2, zero_bubble_v(p, m));
      for (int v = 1; v <= 4; ++v) {
        add("interleaved", v, interleaved({.n_ranks = p, .n_chunks = v, .n_microbatches = m}));
      }
    }
  }
  return all;
}

}  // namespace llm::test
