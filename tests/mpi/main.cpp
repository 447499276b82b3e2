#include <cstdio>

#include "src/base/error.h"
#include "tests/mpi/rank_loop.h"

int main() {
  try {
    llm::MpiSession session;
    return llm::run_and_report(session, [&session] {
      llm::RankTests tests(session);
      llm::test_session(tests);
      llm::test_point_to_point(tests);
      llm::test_control(tests);
      llm::test_mismatches(tests);
      llm::test_collectives(tests);
      tests.print_totals();
      return 0;
    });
  } catch (const llm::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
