#pragma once
#include <cstdint>
#include <string>

#include "src/config/load.h"
#include "src/train/settings.h"

namespace llm {

/// Turns a checked configuration into the settings of a run on `n_ranks` ranks; the length is not
/// known before the data is (set_length). Throws ConfigError for what these ranks cannot run.
///   has_fast_bf16   whether every rank's CPU multiplies bf16: what amp_dtype auto means
///   schedule_text   what read_schedule() gave
Settings settings_from(const LoadedConfig& loaded, std::int64_t n_ranks, bool has_fast_bf16,
                       const std::string& schedule_text = "");

/// The text of the file that distributed.pp_schedule names; empty where it names none. Throws
/// ConfigError naming field and path where it cannot be read.
std::string read_schedule(const LoadedConfig& loaded);

/// The model's part alone.
ModelConfig decoder_config(const ModelSection& model);

}  // namespace llm
