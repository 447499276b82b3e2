#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace llm {

/// The folder of this start, made. `configured` is logging.run_dir. Unset:
/// runs/<date>-<time>-<pid>, or runs/slurm-<SLURM_JOB_ID> under SLURM (with -<restart count> when
/// requeued). Throws ConfigError when it holds another run's metrics: they are never overwritten or
/// mixed. FileError when it cannot be made.
/// A start that goes on from a checkpoint may share the folder: its files have names of their own.
std::string make_run_dir(const std::optional<std::string>& configured, bool goes_on = false);

/// What stands in the names of this start's files in `run_dir`, as metrics.jsonl: nothing where
/// they are its first; otherwise "-from-step-00000100", and a number where that is taken too.
std::string file_suffix(const std::string& run_dir, std::int64_t first_step);

/// The folder of token caches: `configured` (data.cache_dir), or llm-train in the user's cache
/// folder
/// ($XDG_CACHE_HOME, or ~/.cache). Throws ConfigError where neither is known.
std::string cache_dir(const std::optional<std::string>& configured);

}  // namespace llm
