#include "src/comm/mpi/launch.h"

#include <cstddef>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

namespace llm {
namespace {

std::optional<int> number(const Environment& environment, const char* name) {
  const char* const text = environment(name);
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || value < 0 || value > 100'000'000) return std::nullopt;
  return static_cast<int>(value);
}

/// Of the step, or of the job where this is none.
std::optional<int> launched_tasks(const Environment& environment) {
  const auto of_step = number(environment, "SLURM_STEP_NUM_TASKS");
  return of_step ? of_step : number(environment, "SLURM_NTASKS");
}

std::optional<int> slurm_ranks_per_node(const Environment& environment) {
  const int node = number(environment, "SLURM_NODEID").value_or(0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (const char* text = environment(name)) return slurm_tasks_on_node(text, node);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> slurm_tasks_on_node(const std::string& text, int node) {
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const long tasks = std::strtol(at, &end, 10);
    if (end == at) return std::nullopt;
    long n_nodes = 1;
    if (end[0] == '(' && end[1] == 'x') {
      at = end + 2;
      n_nodes = std::strtol(at, &end, 10);
      if (end == at || *end++ != ')') return std::nullopt;
    }
    if (node < n_nodes) return static_cast<int>(tasks);
    node -= static_cast<int>(n_nodes);
    at = *end == ',' ? end + 1 : end;
  }
  return std::nullopt;
}

Launch read_launch(const Environment& environment, int n_cores) {
  Launch launch;
  if (const auto size = number(environment, "OMPI_COMM_WORLD_SIZE")) {
    launch.launcher = "mpirun";
    launch.n_ranks = *size;
    launch.ranks_per_node = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
    // Bound ranks see their own cores only, and mpirun has already refused to give a core twice.
    if (environment("OMPI_MCA_orte_bound_at_launch") == nullptr) launch.cores_per_node = n_cores;
    return launch;
  }
  if (const auto size = launched_tasks(environment)) {
    launch.launcher = "srun";
    launch.n_ranks = *size;
    launch.ranks_per_node = slurm_ranks_per_node(environment);
    // Slurm may bind each task to cores of its own: the node's count is what all of them share.
    const auto on_node = number(environment, "SLURM_CPUS_ON_NODE");
    launch.cores_per_node = on_node ? *on_node : n_cores;
  }
  return launch;
}

NodeOrder order_by_node(const std::vector<int>& node_of) {
  std::map<int, int> index_of;  // by name
  std::vector<std::vector<std::size_t>> ranks_of;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    const auto [entry, is_first] =
        index_of.emplace(node_of[rank], static_cast<int>(ranks_of.size()));
    if (is_first) ranks_of.emplace_back();
    ranks_of[static_cast<std::size_t>(entry->second)].push_back(rank);
  }
  NodeOrder order;
  order.rank_of.resize(node_of.size());
  for (std::size_t node = 0; node < ranks_of.size(); ++node) {
    for (const std::size_t rank : ranks_of[node]) {
      order.rank_of[rank] = static_cast<int>(order.node_of.size());
      order.node_of.push_back(static_cast<int>(node));
    }
  }
  return order;
}

bool is_oversubscribed(const Launch& launch) {
  return launch.ranks_per_node && launch.cores_per_node &&
         *launch.ranks_per_node > *launch.cores_per_node;
}

void check_slurm_plugin(const Environment& environment) {
  // A step has a number, a batch script's shell has none; `none` sets no type.
  const bool in_step =
      environment("SLURM_PROCID") != nullptr && environment("SLURM_STEP_ID") != nullptr;
  const bool by_mpirun = environment("OMPI_COMM_WORLD_SIZE") != nullptr;
  if (!in_step || by_mpirun || environment("PMIX_RANK") != nullptr) return;
  const char* const plugin = environment("SLURM_MPI_TYPE");
  const int n_tasks = launched_tasks(environment).value_or(1);
  throw LaunchError(
      fmt::format("srun started {} task{} with --mpi={}, which this MPI cannot use; start with: "
                  "srun --mpi=pmix",
                  n_tasks, n_tasks == 1 ? "" : "s", plugin == nullptr ? "none" : plugin));
}

void check_world_size(const Launch& launch, int n_mpi_ranks) {
  if (launch.n_ranks <= 1 || n_mpi_ranks != 1) return;
  throw LaunchError(fmt::format(
      "{} says {} ranks, but MPI sees {}: each rank would train alone; start with: {}",
      launch.launcher == "srun" ? "Slurm" : launch.launcher, launch.n_ranks, n_mpi_ranks,
      launch.launcher == "srun" ? "srun --mpi=pmix" : "the mpirun of the MPI it was built with"));
}

}  // namespace llm
