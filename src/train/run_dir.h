#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_session.h"

namespace llm {

/// The folder of this start. `configured` is logging.run_dir. Unset: runs/<date>-<time>-<pid>, or
/// runs/slurm-<SLURM_JOB_ID> under SLURM (with -<restart count> when requeued).
std::string run_dir_of(const std::optional<std::string>& configured);

/// Throws ConfigError when the folder holds another run's metrics: they are never overwritten or
/// mixed. A start that goes on from a checkpoint may share the folder: its files have names of
/// their own.
void check_unused(const std::string& run_dir);

/// Refuses (ConfigError, naming hosts) a folder of which a node sees another than rank 0's, by a
/// file that rank 0 writes into it and removes again. A call of all ranks; `folder` is rank 0's.
/// Nodes get a second to see the file.
///   hosts  of each rank, on rank 0
void check_all_nodes_see(const MpiSession& session, const std::string& field,
                         const std::filesystem::path& folder,
                         const std::vector<std::string>& hosts);

/// What stands in the names of this start's files in `run_dir`, as metrics.jsonl: nothing where
/// they are its first; otherwise "-from-step-00000100", and a number where that is taken too.
std::string file_suffix(const std::string& run_dir, std::int64_t first_step);

/// The folder of token caches: `configured` (data.cache_dir), or llm-train in the user's cache
/// folder
/// ($XDG_CACHE_HOME, or ~/.cache). Throws ConfigError where neither is known.
std::string cache_dir(const std::optional<std::string>& configured);

}  // namespace llm
