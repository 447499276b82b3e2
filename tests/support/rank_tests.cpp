#include "tests/support/rank_tests.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <fmt/format.h>

namespace llm {

std::int64_t RankTests::largest_bytes() const {
  return std::int64_t{std::getenv("LLM_TEST_FEW") == nullptr ? 64 : 4} << 20;
}

void RankTests::run(const std::string& sentence, Body body) {
  sentence_ = sentence;
  n_checks_ = 0;
  body(*this);
  std::int64_t n_checks = 0;
  for (const std::string& count : session_.gather(std::to_string(n_checks_))) {
    n_checks += std::stoll(count);
  }
  n_checks_total_ += n_checks;
  ++n_tests_;
  if (rank() != 0) return;
  std::fputs(
      fmt::format("ok {} - {} ({} checks on {} ranks)\n", n_tests_, sentence, n_checks, n_ranks())
          .c_str(),
      stdout);
  std::fflush(stdout);
}

void RankTests::check(bool holds, const std::string& what) {
  ++n_checks_;
  if (!holds) throw std::runtime_error(fmt::format("test \"{}\": not so: {}", sentence_, what));
}

void RankTests::print_totals() {
  if (rank() != 0) return;
  std::fputs(fmt::format("All tests passed ({} assertions in {} test case{})\n", n_checks_total_,
                         n_tests_, n_tests_ == 1 ? "" : "s")
                 .c_str(),
             stdout);
}

}  // namespace llm
