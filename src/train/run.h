#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_session.h"

namespace llm {

/// What the command line asks of llm-train.
struct RunRequest {
  std::string config_path;             ///< empty: all defaults
  std::vector<std::string> overrides;  ///< section.field=value
  std::string task = "lm";
  std::string trace_dir;                                ///< empty: no trace
  std::chrono::steady_clock::time_point process_begin;  ///< for "first step after"
  std::vector<std::string> command;                     ///< argv as it was typed, for messages
};

/// The text of --plan for `n_ranks`; needs no ranks. Throws ConfigError, DataError.
std::string plan_run(const RunRequest& request, std::int64_t n_ranks, std::int64_t ranks_per_node);

/// Trains, on every rank of `session`. Returns the process's exit code: ok, or stopped after a
/// signal. Rank 0 resolves the configuration; the others use its result.
int run_training(MpiSession& session, const RunRequest& request);

}  // namespace llm
