#pragma once
#include <cstdint>
#include <vector>

#include "src/base/range.h"

namespace llm {

/// The cost of a model's layers in any unit: the embedding, the blocks, final norm and head.
struct LayerCosts {
  double embedding = 0;
  std::vector<double> blocks;
  double head = 0;
};

/// Layers by stage, numbered as the model does: -1 is the embedding, which is the first stage's,
/// 0 .. n_blocks - 1 are blocks, n_blocks is the head, which is the last stage's. Stages are
/// contiguous and have a block at least. The dearest stage costs as little as it can; among those
/// splits the sum of the stages' squares is least, and then early stages, which hold more
/// activations, have fewer blocks. Wants 1 to n_blocks stages.
std::vector<Range> split_by_cost(const LayerCosts& costs, int n_stages);

/// The same from the number of blocks of each stage, each at least 1.
std::vector<Range> split_by_hand(const std::vector<std::int64_t>& n_blocks);

/// By stage: the sum of its layers.
std::vector<double> stage_costs(const LayerCosts& costs, const std::vector<Range>& stage_layers);

}  // namespace llm
