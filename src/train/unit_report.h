#pragma once
#include <string>

#include "src/train/settings.h"

namespace llm {

/// The units of each stage's rank under zero_stage 3, a row a unit: for --plan.
std::string unit_table(const Settings& settings);

/// One line: how many units there are, the largest, and when they are there. Empty where parameters
/// are not shared out.
std::string unit_line(const Settings& settings);

/// One line where a unit has more than half of the model's parameters, with the
/// distributed.fsdp_auto_wrap_min_params that makes each block one; otherwise empty.
std::string unit_warning(const Settings& settings);

/// Of one block: the fsdp_auto_wrap_min_params that makes each a unit.
std::int64_t block_parameters(const ModelConfig& config);

/// "embedding", "block 3" or "final norm, head".
std::string layer_name(const ModelConfig& config, std::int64_t layer);

}  // namespace llm
