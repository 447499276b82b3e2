#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/mpi/mpi_transport.h"
#include "src/rt/loop.h"
#include "tensor/queue.h"
#include "tests/support/queue_poller.h"
#include "tests/support/rank_tests.h"

namespace llm {

inline const WaitName wait_sent{"sent"};
inline const WaitName wait_received{"received"};

/// One rank of a test: a loop that gives up after a while, the transport, and a compute queue.
struct RankLoop {
  explicit RankLoop(RankTests& tests, std::int64_t piece_bytes = std::int64_t{1} << 30)
      : loop(options()),
        compute(loop, queue),
        transport(tests.session(), loop, pieces(piece_bytes)) {}
  static Loop::Options options() {
    Loop::Options options;
    options.stall_timeout_seconds = 60;
    return options;
  }
  static MpiTransport::Options pieces(std::int64_t piece_bytes) {
    MpiTransport::Options options;
    options.piece_bytes = piece_bytes;
    return options;
  }
  Group everyone() {
    std::vector<int> ranks;
    for (int r = 0; r < transport.n_ranks(); ++r) ranks.push_back(r);
    return Group(transport, ranks);
  }

  Loop loop;
  Queue queue;
  LoopQueue compute;
  MpiTransport transport;
};

void test_point_to_point(RankTests& tests);
void test_control(RankTests& tests);
void test_mismatches(RankTests& tests);
void test_collectives(RankTests& tests);
void test_session(RankTests& tests);

}  // namespace llm
