#include "src/comm/mpi/launch.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

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
  const Variables none{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_MPI_TYPE", "none"}};
  CHECK_THROWS_WITH(check_slurm_plugin(environment_of(none)),
                    Catch::Contains("4 tasks") && Catch::Contains("--mpi=none") &&
                        Catch::Contains("srun --mpi=pmix"));
  Variables pmix = none;
  pmix["PMIX_RANK"] = "0";
  CHECK_NOTHROW(check_slurm_plugin(environment_of(pmix)));
  Variables by_mpirun = none;
  by_mpirun["OMPI_COMM_WORLD_SIZE"] = "4";
  CHECK_NOTHROW(check_slurm_plugin(environment_of(by_mpirun)));
  CHECK_NOTHROW(check_slurm_plugin(environment_of({})));
}
