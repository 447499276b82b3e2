#include <deque>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "tests/mpi/rank_loop.h"

namespace llm {
namespace {

/// What rank 0 sends and what every other rank expects.
struct Mismatch {
  Header sent;
  Header expected;
  Dtype sent_dtype;
  Dtype expected_dtype;
  std::int64_t n_sent;
  std::int64_t n_expected;
};

Task<> wait_for(std::deque<Event>& events) {
  for (Event& event : events) co_await event;
}

/// The receivers' error; nothing on rank 0, whose sends are left to themselves.
std::string error_of(RankTests& tests, const Mismatch& mismatch, std::int64_t piece_bytes) {
  // Beyond the transport's end: a message that nobody takes is read from here until MPI ends.
  static std::deque<std::vector<double>> buffers;
  RankLoop here(tests, piece_bytes);
  std::deque<Event> events;
  std::string message;
  const auto n_doubles = static_cast<std::size_t>(std::max(mismatch.n_sent, mismatch.n_expected));
  std::vector<double>& buffer = buffers.emplace_back(n_doubles + 1);
  if (tests.rank() == 0) {
    for (int peer = 1; peer < tests.n_ranks(); ++peer) {
      here.transport.send(peer, 11, mismatch.sent,
                          View(buffer.data(), mismatch.sent_dtype, {mismatch.n_sent}),
                          events.emplace_back(here.loop, wait_sent, peer));
    }
    for (int turn = 0; turn < 1000; ++turn) here.transport.poll();
  } else {
    here.transport.receive(0, 11, mismatch.expected,
                           MutView(buffer.data(), mismatch.expected_dtype, {mismatch.n_expected}),
                           events.emplace_back(here.loop, wait_received, 0));
    here.loop.spawn("receiver", wait_for(events));
    try {
      here.loop.run();
    } catch (const CommError& error) {
      message = error.what();
    }
  }
  tests.session().barrier();
  return message;
}

void expect_error(RankTests& tests, const Mismatch& mismatch, const std::string& expected,
                  const std::string& arrived) {
  for (const std::int64_t piece_bytes : {std::int64_t{1} << 30, std::int64_t{4096}}) {
    const std::string message = error_of(tests, mismatch, piece_bytes);
    if (tests.rank() == 0) continue;
    tests.check(message.find("expected [" + expected + "]") != std::string::npos &&
                    message.find("arrived [" + arrived + "]") != std::string::npos &&
                    message.find("rank 0 on tag 11") != std::string::npos,
                "both sides are shown: " + message);
  }
}

void headers_differ(RankTests& tests) {
  const Header header(MessageKind::partial_sum, 3, 1, 0);
  Mismatch step{header, header, Dtype::f32, Dtype::f32, 100, 100};
  step.sent.step = 4;
  expect_error(tests, step, "partial_sum step 3 index 1 part 0: 100 f32",
               "partial_sum step 4 index 1 part 0: 100 f32");
  Mismatch kind{header, header, Dtype::f32, Dtype::f32, 100, 100};
  kind.sent.kind = MessageKind::gathered;
  expect_error(tests, kind, "partial_sum step 3 index 1 part 0: 100 f32",
               "gathered step 3 index 1 part 0: 100 f32");
  expect_error(tests, {header, header, Dtype::f64, Dtype::f32, 50, 100},
               "partial_sum step 3 index 1 part 0: 100 f32",
               "partial_sum step 3 index 1 part 0: 50 f64");
}

void sizes_differ(RankTests& tests) {
  const Header header(MessageKind::activation, 7, 2, 1);
  for (const auto& [sent, expected] : {std::pair<std::int64_t, std::int64_t>{100, 10},
                                       {10, 100},
                                       {0, 5},
                                       {5, 0},
                                       {300000, 100},
                                       {100, 300000},
                                       {300000, 299999}}) {
    expect_error(tests, {header, header, Dtype::f32, Dtype::f32, sent, expected},
                 fmt::format("activation step 7 index 2 part 1: {} f32", expected),
                 fmt::format("activation step 7 index 2 part 1: {} f32", sent));
  }
}

}  // namespace

void test_mismatches(RankTests& tests) {
  tests.run("another kind, step or dtype is an error that shows both sides", headers_differ);
  tests.run("another size is an error that shows both sides", sizes_differ);
}

}  // namespace llm
