#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "tests/mpi/rank_loop.h"

namespace llm {
namespace {

void texts_travel(RankTests& tests) {
  for (const std::size_t n : {0, 1, 5000, 300000}) {
    const std::string mine(n + static_cast<std::size_t>(tests.rank()),
                           static_cast<char>('a' + tests.rank()));
    const std::string zeros = tests.session().broadcast(mine);
    tests.check(zeros == std::string(n, 'a'), "every rank has rank 0's text");
    const std::vector<std::string> all = tests.session().gather(mine);
    tests.check(all.size() == (tests.rank() == 0 ? static_cast<std::size_t>(tests.n_ranks()) : 0U),
                "rank 0 alone has all texts");
    for (std::size_t r = 0; r < all.size(); ++r) {
      tests.check(all[r] == std::string(n + r, static_cast<char>('a' + static_cast<int>(r))),
                  fmt::format("text {} is rank {}'s", r, r));
    }
  }
}

void ranks_are_counted(RankTests& tests) {
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  tests.check(size != nullptr && std::to_string(tests.n_ranks()) == size,
              "MPI has as many ranks as mpirun started");
  const char* const nodes = std::getenv("LLM_TEST_NODES");
  const int n_nodes = nodes == nullptr ? 1 : std::min(std::atoi(nodes), tests.n_ranks());
  const MpiSession& session = tests.session();
  tests.check(session.n_nodes() == n_nodes, "nodes are counted");
  int begin = 0;
  for (int node = 0; node < n_nodes; ++node) {
    // As mpirun deals them out: the first nodes have one rank more.
    const int n_here = (tests.n_ranks() - node + n_nodes - 1) / n_nodes;
    for (int rank = begin; rank < begin + n_here; ++rank) {
      tests.check(session.node_of(rank) == node, "ranks of a node are neighbours");
    }
    if (begin <= session.rank() && session.rank() < begin + n_here) {
      tests.check(session.ranks_per_node() == n_here, "ranks of this node are counted");
      tests.check(session.local_rank() == session.rank() - begin, "places on the node ascend");
    }
    begin += n_here;
  }
  const char* const launched = std::getenv("OMPI_COMM_WORLD_RANK");
  tests.check((session.rank() == 0) == (launched != nullptr && std::string(launched) == "0"),
              "rank 0 is the launcher's");
}

void clocks_agree(RankTests& tests) {
  const ClockAlignment mine = tests.session().align_clocks();
  tests.check(mine.uncertainty_ns >= 0, "an uncertainty is not negative");
  const std::int64_t zeros = std::stoll(tests.session().broadcast(std::to_string(mine.origin_ns)));
  // Ranks of one node share a clock, so the true origin is known.
  const std::int64_t error_ns = std::abs(mine.origin_ns - zeros);
  tests.check(error_ns <= mine.uncertainty_ns,
              fmt::format("the origin is off by {} ns, stated {}", error_ns, mine.uncertainty_ns));
}

}  // namespace

void test_session(RankTests& tests) {
  tests.run("the session knows its ranks and nodes", ranks_are_counted);
  tests.run("texts of any length are broadcast and gathered", texts_travel);
  tests.run("a clock's alignment is within its stated uncertainty", clocks_agree);
}

}  // namespace llm
