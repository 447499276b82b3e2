#include "src/comm/mpi/launch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

bool oversubscribed(const Variables& variables, int n_cores) {
  return is_oversubscribed(read_launch(environment_of(variables), n_cores));
}

}  // namespace

TEST_CASE("Slurm's tasks per node are read for each node") {
  CHECK(slurm_tasks_on_node("4", 0) == 4);
  CHECK(slurm_tasks_on_node("4(x2),3", 0) == 4);
  CHECK(slurm_tasks_on_node("4(x2),3", 1) == 4);
  CHECK(slurm_tasks_on_node("4(x2),3", 2) == 3);
  CHECK(slurm_tasks_on_node("1,2(x3),7", 3) == 2);
  CHECK_FALSE(slurm_tasks_on_node("4(x2),3", 3));
  CHECK_FALSE(slurm_tasks_on_node("", 0));
  CHECK_FALSE(slurm_tasks_on_node("four", 0));
  CHECK_FALSE(slurm_tasks_on_node("4(x2", 0));
}

TEST_CASE("ranks that outnumber the cores they share are oversubscribed") {
  const Variables mpirun{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  CHECK(oversubscribed(mpirun, 2));
  CHECK_FALSE(oversubscribed(mpirun, 4));
  const Variables slurm{{"SLURM_NTASKS", "8"},
                        {"SLURM_TASKS_PER_NODE", "4(x2)"},
                        {"SLURM_NODEID", "1"},
                        {"SLURM_CPUS_ON_NODE", "2"}};
  CHECK(oversubscribed(slurm, 64));
  CHECK_FALSE(oversubscribed({}, 1));
}

TEST_CASE("ranks bound to cores of their own are not oversubscribed, though each sees one core") {
  CHECK_FALSE(oversubscribed({{"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"OMPI_MCA_orte_bound_at_launch", "1"}},
                             1));
  CHECK_FALSE(oversubscribed(
      {{"SLURM_NTASKS", "4"}, {"SLURM_TASKS_PER_NODE", "4"}, {"SLURM_CPUS_ON_NODE", "4"}}, 1));
}

TEST_CASE("a step's own task counts go before the job's") {
  const Launch launch = read_launch(environment_of({{"SLURM_NTASKS", "16"},
                                                    {"SLURM_STEP_NUM_TASKS", "2"},
                                                    {"SLURM_TASKS_PER_NODE", "16"},
                                                    {"SLURM_STEP_TASKS_PER_NODE", "2"}}),
                                    4);
  CHECK(launch.n_ranks == 2);
  CHECK(launch.ranks_per_node == 2);
}

TEST_CASE("several tasks that MPI sees as one rank are refused with both numbers and the way out") {
  const Launch slurm = read_launch(environment_of({{"SLURM_NTASKS", "8"}}), 4);
  CHECK_THROWS_WITH(check_world_size(slurm, 1), Catch::Contains("8 ranks") &&
                                                    Catch::Contains("MPI sees 1") &&
                                                    Catch::Contains("srun --mpi=pmix"));
  const Launch mpirun = read_launch(environment_of({{"OMPI_COMM_WORLD_SIZE", "3"}}), 4);
  CHECK_THROWS_AS(check_world_size(mpirun, 1), ConfigError);
  CHECK_NOTHROW(check_world_size(slurm, 8));
  CHECK_NOTHROW(check_world_size(Launch(), 1));
}

TEST_CASE("srun with a PMI that MPI does not speak is refused before MPI starts") {
  Variables none{{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}};
  CHECK_THROWS_WITH(check_slurm_plugin(environment_of(none)),
                    "srun started 4 tasks with --mpi=none, which this MPI cannot use; start with: "
                    "srun --mpi=pmix");
  none["SLURM_MPI_TYPE"] = "pmi2";
  CHECK_THROWS_WITH(check_slurm_plugin(environment_of(none)), Catch::Contains("--mpi=pmi2"));
  none["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK_THROWS_WITH(check_slurm_plugin(environment_of(none)), Catch::Contains("1 task with"));
  Variables pmix = none;
  pmix["PMIX_RANK"] = "0";
  CHECK_NOTHROW(check_slurm_plugin(environment_of(pmix)));
  Variables by_mpirun = none;
  by_mpirun["OMPI_COMM_WORLD_SIZE"] = "4";
  CHECK_NOTHROW(check_slurm_plugin(environment_of(by_mpirun)));
  CHECK_NOTHROW(check_slurm_plugin(environment_of({})));
  // The shell of a batch script is no step: its only process may be MPI's only rank.
  CHECK_NOTHROW(check_slurm_plugin(environment_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})));
}

TEST_CASE("ranks are numbered node by node, whatever order the launcher dealt them out in") {
  const NodeOrder by_slot = order_by_node({5, 5, 9, 9});
  CHECK(by_slot.rank_of == std::vector<int>{0, 1, 2, 3});
  CHECK(by_slot.node_of == std::vector<int>{0, 0, 1, 1});
  const NodeOrder cyclic = order_by_node({0, 1, 2, 0, 1, 2, 0});
  CHECK(cyclic.rank_of == std::vector<int>{0, 3, 5, 1, 4, 6, 2});
  CHECK(cyclic.node_of == std::vector<int>{0, 0, 0, 1, 1, 2, 2});
  CHECK(order_by_node({7}).rank_of == std::vector<int>{0});
}

TEST_CASE("every rank gets a number of its own, rank 0 stays, and a node's are neighbours") {
  for (int n_ranks = 1; n_ranks <= 24; ++n_ranks) {
    for (int stride = 1; stride <= n_ranks; ++stride) {
      std::vector<int> node_of;
      for (int rank = 0; rank < n_ranks; ++rank) node_of.push_back(rank * 7 % n_ranks / stride);
      const NodeOrder order = order_by_node(node_of);
      CHECK(order.rank_of[0] == 0);
      CHECK(std::is_sorted(order.node_of.begin(), order.node_of.end()));
      std::vector<int> seen = order.rank_of;
      std::sort(seen.begin(), seen.end());
      for (int rank = 0; rank < n_ranks; ++rank) {
        const auto i = static_cast<std::size_t>(rank);
        CHECK(seen[i] == rank);
        for (int other = 0; other < n_ranks; ++other) {
          const auto j = static_cast<std::size_t>(other);
          const auto node = [&order](std::size_t k) {
            return order.node_of[static_cast<std::size_t>(order.rank_of[k])];
          };
          CHECK((node_of[i] == node_of[j]) == (node(i) == node(j)));
        }
      }
    }
  }
}
