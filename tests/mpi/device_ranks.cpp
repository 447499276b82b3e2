// Ranks with a device each, emulated, whose tensors go through pinned buffers and MPI.
#include <cstdio>
#include <deque>
#include <numeric>

#include "src/base/error.h"
#include "src/comm/collective.h"
#include "src/comm/staged_transport.h"
#include "tests/cuda/emulated_module.h"
#include "tests/mpi/rank_loop.h"
#include "tests/support/device_values.h"
#include "tests/support/values.h"

namespace llm {
namespace {

const WaitName wait_moved{"moved"};

Task<> all_reduce(Group& group, Queue& queue, const CollectiveShape& shape, MutView vector,
                  MutView scratch) {
  const ReduceScatterPlan reduce = reduce_scatter_plan(CollectiveForm::direct, shape);
  const std::vector<GatherRound> gather = all_gather_plan(CollectiveForm::direct, shape);
  const CollectiveId id(1, 0, 0);
  co_await reduce_scatter(group, queue, reduce, id, vector, scratch);
  co_await all_gather(group, gather, id, vector);
}

std::vector<int> all_ranks(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void test_sums(RankTests& tests) {
  for (const std::int64_t n : {0, 1, 1001, 20'000}) {
    test::EmulatedModule emulated(static_cast<std::uint64_t>(tests.rank()));
    RankLoop rank(tests);
    StagedTransport::Options cut;
    cut.segment_bytes = 4096;
    StagedTransport staged(rank.transport, cut);
    Group group(staged, all_ranks(tests.n_ranks()));
    Queue queue(Device::cuda);
    const LoopQueue poller(rank.loop, queue);
    const CollectiveShape shape{group.index, group.size(), even_cuts(n, group.size(), 1)};
    const test::Values vector(values_of(tests.rank(), n), Device::cuda);
    const test::Values scratch(std::vector<float>(static_cast<std::size_t>(n)), Device::cuda);
    rank.loop.spawn("sum", all_reduce(group, queue, shape, vector.view(), scratch.view()));
    rank.loop.run();
    const std::vector<float> sums = vector.read();
    bool is_tree = true;
    for (std::int64_t i = 0; i < n; ++i) {
      is_tree = is_tree && sums[static_cast<std::size_t>(i)] == tree_sum(0, group.size(), i);
    }
    tests.check(is_tree, "the sum over ranks has the tree's bits");
    tests.session().barrier();
  }
}

Task<> wait_for(std::deque<Event>& events) {
  for (Event& event : events) co_await event;
}

/// Large tensors both ways at once, on one tag with a view on the CPU between them.
void test_exchange(RankTests& tests) {
  constexpr std::int64_t n = 700'000;  // three segments
  test::EmulatedModule emulated(7);
  RankLoop rank(tests);
  StagedTransport staged(rank.transport);
  const int peer = 1 - tests.rank();
  std::deque<Event> events;
  std::deque<test::Values> values;
  const auto is_on_cpu = [](int i) { return i == 1; };
  for (int i = 0; i < 3; ++i) {
    const Device device = is_on_cpu(i) ? Device::cpu : Device::cuda;
    const test::Values& source = values.emplace_back(values_of(tests.rank() + 10 * i, n), device);
    const test::Values& target =
        values.emplace_back(std::vector<float>(static_cast<std::size_t>(n)), device);
    const Header header(MessageKind::user, 1, i, 0);
    staged.receive(peer, 5, header, target.view(), events.emplace_back(rank.loop, wait_moved));
    staged.send(peer, 5, header, source.view(), events.emplace_back(rank.loop, wait_moved));
  }
  rank.loop.spawn("wait", wait_for(events));
  rank.loop.run();
  for (int i = 0; i < 3; ++i) {
    tests.check(values[static_cast<std::size_t>(2 * i + 1)].read() == values_of(peer + 10 * i, n),
                "a large tensor arrives whole");
  }
  tests.check(staged.pinned_bytes() == 8 << 20, "a lane has four buffers, each way");
  tests.session().barrier();
}

}  // namespace
}  // namespace llm

int main() {
  try {
    llm::MpiSession session;
    return llm::run_and_report(session, [&session] {
      llm::RankTests tests(session);
      tests.run("sums over ranks with a device each have the CPU's bits", llm::test_sums);
      tests.run("large tensors on devices pass each other in order", llm::test_exchange);
      tests.print_totals();
      return 0;
    });
  } catch (const llm::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
