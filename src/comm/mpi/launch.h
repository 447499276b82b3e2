#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/base/error.h"

namespace llm {

/// Reads a variable of the environment: nullptr where it is not set.
using Environment = std::function<const char*(const char* name)>;

/// What the launcher told this process before MPI is up.
struct Launch {
  std::string launcher;               ///< "mpirun", "srun", or "" when started alone
  int n_ranks = 1;                    ///< what the launcher says it started
  std::optional<int> ranks_per_node;  ///< on this node
  std::optional<int>
      cores_per_node;  ///< that the ranks of this node share; nothing: each has its own
};

/// From OMPI_COMM_WORLD_* (mpirun) and SLURM_* (srun); `n_cores` is the size of this process's CPU
/// set, which is the node's share of the job unless the launcher bound each rank to cores of its
/// own.
Launch read_launch(const Environment& environment, int n_cores);

/// True when ranks must share cores: a rank that waits has to let the others run.
bool is_oversubscribed(const Launch& launch);

/// A launch that every rank finds wrong alike, before any of them could tell the others.
struct LaunchError : ConfigError {
  explicit LaunchError(const std::string& m) : ConfigError(m) {}
};

/// Throws LaunchError where srun was told a PMI that this MPI does not speak, or none, also for one
/// task: it would end in MPI_Init with a text that names no way out.
void check_slurm_plugin(const Environment& environment);

/// Throws LaunchError where the launcher started several ranks and MPI sees one: each would train
/// alone.
void check_world_size(const Launch& launch, int n_mpi_ranks);

/// Ranks numbered node by node.
struct NodeOrder {
  std::vector<int> rank_of;  ///< of each rank as the launcher numbers it
  std::vector<int> node_of;  ///< of each rank as numbered here: 0, 0, 1, ..., ascending
};

/// Nodes in the order of their first rank, ranks of a node in theirs; rank 0 stays.
///   node_of  any name of the node of each rank, as the launcher numbers ranks
NodeOrder order_by_node(const std::vector<int>& node_of);

/// Entry `node` of Slurm's "4(x2),3": 4 4 3. Nothing where the text or the index is wrong.
std::optional<int> slurm_tasks_on_node(const std::string& text, int node);

}  // namespace llm
