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
  tests.check(tests.session().ranks_per_node() == tests.n_ranks(), "all ranks are on this node");
  tests.check(tests.session().local_rank() == tests.rank(),
              "places on the node are as in the world");
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
