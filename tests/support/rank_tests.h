#pragma once
#include <cstdint>
#include <string>

#include "src/comm/mpi/mpi_session.h"

namespace llm {

/// Tests that all ranks of a job run together. A check that fails throws; under run_and_report that
/// ends every rank, with the sentence, the check and the rank in the cause line.
class RankTests {
 public:
  using Body = void (*)(RankTests& tests);

  explicit RankTests(MpiSession& session) : session_(session) {}
  MpiSession& session() { return session_; }
  int rank() const { return session_.rank(); }
  int n_ranks() const { return session_.n_ranks(); }

  /// Of the largest tensors: 64 MiB, and 4 under LLM_TEST_FEW=1, where memory errors are looked
  /// for.
  std::int64_t largest_bytes() const;
  /// Runs `body` on every rank; rank 0 prints the sentence and the number of checks of all ranks.
  void run(const std::string& sentence, Body body);
  void check(bool holds, const std::string& what);
  /// Prints the totals in the form that scripts/count_tests.py reads.
  void print_totals();

 private:
  MpiSession& session_;
  std::string sentence_;
  std::int64_t n_checks_ = 0;
  std::int64_t n_checks_total_ = 0;
  int n_tests_ = 0;
};

}  // namespace llm
