#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "src/train/settings.h"

namespace llm {

/// `threads` is what ops take for themselves, of which oneDNN's own is not known.
enum class LedgerKind : std::uint8_t { weights, gradients, moments, activations, other, threads };

/// One line of a rank's memory: what for, and how many bytes.
struct LedgerEntry {
  LedgerKind kind;
  std::string what;
  std::int64_t n_bytes;
  bool is_on_host = false;  ///< of a run on devices: not in the device's memory
};

/// Everything `rank` allocates for a run, exactly as it will be: parameters, the accumulation
/// tree's gradient buffers, moments, activations, scratch, receives, samples; and at most what ops
/// take for themselves. The libraries' own memory and the program itself are not in it. Ranks
/// differ by their stages and by what they receive at a time; of those with one stage the last one
/// receives most.
std::vector<LedgerEntry> memory_ledger(const Settings& settings, int rank);

/// What one data-parallel rank sends in a step.
struct StepTraffic {
  std::int64_t n_start_messages = 0;  ///< of tensors, once, before the first step
  std::int64_t n_tensor_messages = 0;
  std::int64_t n_bytes = 0;
  std::int64_t n_control_messages = 0;
};
/// The part of it between the stages of a pipeline.
StepTraffic stage_traffic(const Settings& settings, int rank);
StepTraffic step_traffic(const Settings& settings, int rank);

/// One line where a library adds up gradients: what that promises; otherwise empty.
std::string library_sums_line(const Settings& settings);

/// One line where the ranks that share each layer are on several nodes; otherwise empty.
std::string tensor_parallel_warning(const Settings& settings, const std::vector<int>& node_of);

/// What a rank that gets no memory says: the bytes asked for and held, the plan's ledger, and the
/// fields that help most.
std::string out_of_memory_text(const Settings& settings, int rank, std::int64_t bytes_asked_for,
                               std::int64_t bytes_held);

/// The text of `llm-train --plan`; with the memory of a node it ends with the cheapest zero_stage
/// that fits there.
std::string plan_text(const Settings& settings, std::int64_t ranks_per_node,
                      std::int64_t node_bytes = 0);

}  // namespace llm
