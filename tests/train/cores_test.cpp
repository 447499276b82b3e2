#include "src/train/cores.h"

#include <sched.h>

#include <catch2/catch.hpp>

using namespace llm;

TEST_CASE("a process counts the cores that it is bound to, not the machine's") {
  cpu_set_t before;
  CPU_ZERO(&before);
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(static_cast<int>(bound_cores().size()) == CPU_COUNT(&before));
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(bound_cores() == std::vector<int>{core});
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}

TEST_CASE("fewer bound cores than threads are warned of with both numbers and the way out") {
  CHECK(cores_warning({2, 2}, 2).empty());
  CHECK(cores_warning({1}, 1).empty());
  CHECK(cores_warning({8, 4, 4}, 4).empty());
  CHECK(cores_warning({1, 1}, 2) ==
        "warning: distributed.threads_per_rank is 2, but rank 0 (and 1 more) may run on 1 core "
        "only; start with mpirun --map-by slot:PE=2 or --bind-to none, or write "
        "threads_per_rank: 1");
  CHECK(cores_warning({8, 8, 3, 8}, 4) ==
        "warning: distributed.threads_per_rank is 4, but rank 2 may run on 3 cores only; start "
        "with mpirun --map-by slot:PE=4 or --bind-to none, or write threads_per_rank: 3");
}

TEST_CASE("runs of cores are written as ranges") {
  CHECK(cores_text({}) == "");
  CHECK(cores_text({3}) == "3");
  CHECK(cores_text({0, 1, 2, 3, 8}) == "0-3,8");
  CHECK(cores_text({0, 2, 4, 5}) == "0,2,4-5");
}
