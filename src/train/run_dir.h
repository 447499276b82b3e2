#pragma once
#include <optional>
#include <string>

namespace llm {

/// The folder of this start, made. `configured` is logging.run_dir. Unset:
/// runs/<date>-<time>-<pid>, or runs/slurm-<SLURM_JOB_ID> under SLURM (with -<restart count> when
/// requeued). Throws ConfigError when it holds another run's metrics: they are never overwritten or
/// mixed. FileError when it cannot be made.
std::string make_run_dir(const std::optional<std::string>& configured);

/// The folder of token caches: `configured` (data.cache_dir), or llm-train in the user's cache
/// folder
/// ($XDG_CACHE_HOME, or ~/.cache). Throws ConfigError where neither is known.
std::string cache_dir(const std::optional<std::string>& configured);

}  // namespace llm
