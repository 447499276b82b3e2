#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include <fmt/format.h>
#include "src/comm/collective.h"
#include "src/comm/mpi/shared_ranks.h"
#include "tensor/storage.h"
#include "tests/mpi/rank_loop.h"
#include "tests/support/values.h"

namespace llm {
namespace {

using Cuts = std::vector<std::int64_t>;

bool is_power_of_two(int n) {
  return (n & (n - 1)) == 0;
}

std::vector<CollectiveForm> forms_for(int n_ranks) {
  std::vector<CollectiveForm> forms{CollectiveForm::direct};
  if (is_power_of_two(n_ranks)) forms.push_back(CollectiveForm::recursive);
  return forms;
}

bool same_bits(const float* a, const std::vector<float>& b, Range range) {
  return range.empty() || std::memcmp(a + range.begin, b.data() + range.begin,
                                      static_cast<std::size_t>(range.size()) * sizeof(float)) == 0;
}

std::vector<float> sums_of(int n_ranks, std::int64_t n, int salt) {
  std::vector<float> sums(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    sums[static_cast<std::size_t>(i)] = tree_sum(0, n_ranks, i + salt);
  }
  return sums;
}

/// One all-reduce in place, as the reducers do it: a reduce-scatter, then an all-gather.
struct AllReduce {
  AllReduce(Group& group_, CollectiveForm form, const Cuts& cuts, int tag, int salt_)
      : group(group_),
        shape{group.index, group.size(), cuts},
        reduce(reduce_scatter_plan(form, shape)),
        gather(all_gather_plan(form, shape)),
        id(tag, 1, tag),
        salt(salt_) {
    reset();
    scratch.resize(static_cast<std::size_t>(reduce.scratch_elements) + 1);
  }
  void reset() {
    values.resize(static_cast<std::size_t>(shape.cuts.back()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = value_of(group.index, static_cast<std::int64_t>(i) + salt);
    }
  }
  MutView vector() { return MutView(values.data(), {static_cast<std::int64_t>(values.size())}); }
  MutView scratch_view() {
    return MutView(scratch.data(), {static_cast<std::int64_t>(scratch.size())});
  }

  Group& group;
  CollectiveShape shape;
  ReduceScatterPlan reduce;
  std::vector<GatherRound> gather;
  CollectiveId id;
  int salt;
  std::vector<float> values;
  std::vector<float> scratch;
};

Task<> do_reduce_scatter(AllReduce& all, Queue& queue) {
  co_await reduce_scatter(all.group, queue, all.reduce, all.id, all.vector(), all.scratch_view());
}

Task<> do_all_reduce(AllReduce& all, Queue& queue, int n_times) {
  for (int n = 0; n < n_times; ++n) {
    all.reset();
    co_await reduce_scatter(all.group, queue, all.reduce, all.id, all.vector(), all.scratch_view());
    co_await all_gather(all.group, all.gather, all.id, all.vector());
  }
}

/// In float elements, from none to the largest.
std::vector<std::int64_t> sizes(const RankTests& tests) {
  return {0,    1,    2,    3,     5,      7,       64,
          1000, 4096, 4097, 65537, 262144, 1000003, tests.largest_bytes() / 4};
}

void reduce_scatters(RankTests& tests) {
  for (const CollectiveForm form : forms_for(tests.n_ranks())) {
    for (const std::int64_t n : sizes(tests)) {
      RankLoop here(tests);
      Group group = here.everyone();
      AllReduce all(group, form, even_cuts(n, tests.n_ranks(), 1), 3, 0);
      here.loop.spawn("reduce_scatter", do_reduce_scatter(all, here.queue));
      here.loop.run();
      tests.check(same_bits(all.values.data(), sums_of(tests.n_ranks(), n, 0), all.reduce.owned),
                  fmt::format("the owned piece of {} elements is the tree's sum", n));
      const std::int64_t n_bytes = (n - all.reduce.owned.size()) * 4;
      tests.check(
          form == CollectiveForm::recursive || here.transport.counts().bytes_sent == n_bytes,
          "a rank sends what it does not own, once");
    }
  }
}

void all_reduces(RankTests& tests) {
  for (const CollectiveForm form : forms_for(tests.n_ranks())) {
    for (const std::int64_t n : sizes(tests)) {
      RankLoop here(tests, 1 << 20);
      Group group = here.everyone();
      AllReduce all(group, form, even_cuts(n, tests.n_ranks(), 4096), 3, 1);
      here.loop.spawn("all_reduce", do_all_reduce(all, here.queue, 1));
      here.loop.run();
      tests.check(same_bits(all.values.data(), sums_of(tests.n_ranks(), n, 1), {0, n}),
                  fmt::format("all {} elements are the tree's sum", n));
    }
  }
}

void unequal_pieces(RankTests& tests) {
  const int n_ranks = tests.n_ranks();
  for (const CollectiveForm form : forms_for(n_ranks)) {
    for (int shape = 0; shape < 4; ++shape) {
      Cuts cuts{0};
      for (int k = 0; k < n_ranks; ++k) {
        // Growing pieces; all in the last; all in the first; every second one empty.
        const std::int64_t piece = shape == 0   ? 1000 * k + 1
                                   : shape == 1 ? (k == n_ranks - 1 ? 50001 : 0)
                                   : shape == 2 ? (k == 0 ? 50001 : 0)
                                                : (k % 2 == 0 ? 7777 : 0);
        cuts.push_back(cuts.back() + piece);
      }
      RankLoop here(tests);
      Group group = here.everyone();
      AllReduce all(group, form, cuts, 4, shape);
      here.loop.spawn("all_reduce", do_all_reduce(all, here.queue, 1));
      here.loop.run();
      tests.check(
          same_bits(all.values.data(), sums_of(n_ranks, cuts.back(), shape), {0, cuts.back()}),
          fmt::format("shape {} of unequal pieces is the tree's sum", shape));
    }
  }
}

void many_in_flight(RankTests& tests) {
  constexpr int n_collectives = 24;
  constexpr std::array<int, 4> steps{1, 5, 23, 7};
  const int n_ranks = tests.n_ranks();
  RankLoop here(tests);
  Group group = here.everyone();
  std::deque<AllReduce> all;
  for (int n = 0; n < n_collectives; ++n) {
    const std::int64_t size = n * n * 397 + n;
    all.emplace_back(group, best_form(n_ranks), even_cuts(size, n_ranks, 64), 100 + n, n);
  }
  for (int n = 0; n < n_collectives; ++n) {
    // Every rank starts them in an order of its own: steps without a common factor with 24.
    const int which = n * steps[static_cast<std::size_t>(tests.rank() % 4)] % n_collectives;
    here.loop.spawn(fmt::format("all_reduce {}", n),
                    do_all_reduce(all[static_cast<std::size_t>(which)], here.queue, 3));
  }
  here.loop.run();
  for (int n = 0; n < n_collectives; ++n) {
    AllReduce& one = all[static_cast<std::size_t>(n)];
    const std::int64_t size = one.shape.cuts.back();
    tests.check(same_bits(one.values.data(), sums_of(n_ranks, size, n), {0, size}),
                fmt::format("collective {} is the tree's sum", n));
  }
}

void repeated(RankTests& tests) {
  for (const CollectiveForm form : forms_for(tests.n_ranks())) {
    RankLoop here(tests);
    Group group = here.everyone();
    AllReduce all(group, form, even_cuts(333, tests.n_ranks(), 1), 8, 5);
    here.loop.spawn("all_reduce", do_all_reduce(all, here.queue, 1000));
    here.loop.run();
    tests.check(same_bits(all.values.data(), sums_of(tests.n_ranks(), 333, 5), {0, 333}),
                "the thousandth is the tree's sum");
  }
}

template <typename T>
T element(int rank, std::int64_t i) {
  return static_cast<T>(rank * 100003 + i * 7 + 1);
}

/// Gathers pieces of T from all ranks, through both forms.
template <typename T>
void gather_of(RankTests& tests, std::int64_t n, int tag) {
  const int n_ranks = tests.n_ranks();
  for (const CollectiveForm form : forms_for(n_ranks)) {
    RankLoop here(tests);
    Group group = here.everyone();
    const CollectiveShape shape{group.index, n_ranks, even_cuts(n, n_ranks, 3)};
    const std::vector<GatherRound> plan = all_gather_plan(form, shape);
    std::vector<T> values(static_cast<std::size_t>(n));
    const auto piece_range = [&](int rank) {
      const auto piece = static_cast<std::size_t>(piece_of_rank(form, rank, n_ranks));
      return Range{shape.cuts[piece], shape.cuts[piece + 1]};
    };
    const Range mine = piece_range(tests.rank());
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
      values[static_cast<std::size_t>(i)] = element<T>(tests.rank(), i);
    }
    here.loop.spawn("all_gather",
                    all_gather(group, plan, CollectiveId(tag, 2, 0), MutView(values.data(), {n})));
    here.loop.run();
    for (int rank = 0; rank < n_ranks; ++rank) {
      const Range range = piece_range(rank);
      bool all_right = true;
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        all_right = all_right && values[static_cast<std::size_t>(i)] == element<T>(rank, i);
      }
      tests.check(all_right, fmt::format("the piece of rank {} of {} elements arrived", rank, n));
    }
  }
}

void all_gathers(RankTests& tests) {
  for (const std::int64_t n : sizes(tests)) gather_of<float>(tests, n, 20);
  for (const std::int64_t n : {0, 1, 10, 4097}) {
    gather_of<std::uint8_t>(tests, n, 21);
    gather_of<std::int64_t>(tests, n, 22);
  }
}

void broadcasts(RankTests& tests) {
  for (int root = 0; root < tests.n_ranks(); ++root) {
    for (const std::int64_t n : sizes(tests)) {
      if (n > 2'000'000 && root > 0) continue;
      RankLoop here(tests, 1 << 20);
      Group group = here.everyone();
      const std::vector<GatherRound> plan = broadcast_plan(group.index, group.size(), root, n);
      std::vector<float> values(static_cast<std::size_t>(n), -1.0f);
      const std::vector<float> roots = values_of(root, n);
      if (tests.rank() == root) values = roots;
      here.loop.spawn("broadcast", broadcast(group, plan, CollectiveId(30, 4, root),
                                             MutView(values.data(), {n})));
      here.loop.run();
      tests.check(same_bits(values.data(), roots, {0, n}),
                  fmt::format("{} elements of root {} are here", n, root));
    }
  }
}

/// One rank of sums in place: its vector lies where the others can map it.
struct InPlace {
  InPlace(Group& group_, std::int64_t n)
      : group(group_),
        memory(Storage::shared(n * 4)),
        plan(in_place_plan({group.index, group.size(), even_cuts(n, group.size(), 16)}, 16384)),
        whole{0, n} {}
  MutView vector() const { return memory.view(Dtype::f32, {whole.size()}); }
  Group& group;
  Storage memory;
  InPlacePlan plan;
  Range whole;
  GroupVectors vectors;
};

Task<> do_sums_in_place(InPlace& all, Queue& queue, RankTests& tests, int n_times) {
  std::vector<SharedHandle> handles(static_cast<std::size_t>(all.group.size()));
  handles[static_cast<std::size_t>(all.group.index)] = all.memory.handle();
  co_await exchange_handles(all.group, CollectiveId(5, 0, 0), handles);
  all.vectors = GroupVectors(all.group.index, all.vector(), handles);
  float* const values = all.vector().as<float>();
  for (int n = 0; n < n_times; ++n) {
    for (std::int64_t i = 0; i < all.whole.size(); ++i) {
      values[i] = value_of(all.group.index, i + n);
    }
    const CollectiveId id(5, n, 0);
    co_await sum_in_place(all.group, queue, all.plan, id, all.vectors, all.whole);
    const std::vector<float> sums = sums_of(all.group.size(), all.whole.size(), n);
    tests.check(same_bits(values, sums, all.whole), fmt::format("sum {} is the tree's", n));
  }
}

void sums_in_place(RankTests& tests) {
  const bool is_one_node = tests.session().n_nodes() == 1;
  tests.check(ranks_share_memory(tests.session()) == (tests.n_ranks() > 1 && is_one_node),
              "several ranks of this machine map each other's memory");
  for (const std::int64_t n : sizes(tests)) {
    RankLoop here(tests);
    Group group = here.everyone();
    InPlace all(group, n);
    const int n_times = n > 100'000 ? 3 : 100;
    here.loop.spawn("sums", do_sums_in_place(all, here.queue, tests, n_times));
    here.loop.run();
    tests.check(here.transport.counts().messages_sent == (group.size() - 1) * (1 + 2 * n_times),
                "two messages a sum and peer");
    tests.session().barrier();  // memory stays until nobody writes to it
  }
}

/// A group that is not the world, its ranks out of order: even and odd ranks apart.
void groups_apart(RankTests& tests) {
  std::vector<int> ranks;
  for (int r = tests.n_ranks() - 1; r >= 0; --r) {
    if (r % 2 == tests.rank() % 2) ranks.push_back(r);
  }
  RankLoop here(tests);
  Group group(here.transport, ranks);
  AllReduce all(group, best_form(group.size()), even_cuts(1001, group.size(), 1), 6, 9);
  here.loop.spawn("all_reduce", do_all_reduce(all, here.queue, 5));
  here.loop.run();
  tests.check(same_bits(all.values.data(), sums_of(group.size(), 1001, 9), {0, 1001}),
              "the sum is the group's alone");
}

}  // namespace

void test_collectives(RankTests& tests) {
  const std::string sizes = fmt::format("0 to {} MiB", tests.largest_bytes() >> 20);
  tests.run("a reduce-scatter of " + sizes + " leaves the tree's sum with its owners",
            reduce_scatters);
  tests.run("an all-reduce of " + sizes + " in place has the tree's bits on every rank",
            all_reduces);
  tests.run("pieces may be unequal or empty", unequal_pieces);
  tests.run("24 collectives in flight, started in any order, do not mix", many_in_flight);
  tests.run("1000 small all-reduces on one tag follow each other", repeated);
  tests.run("an all-gather of " + sizes + " of any dtype brings every piece", all_gathers);
  tests.run("a broadcast of " + sizes + " reaches every rank from every root", broadcasts);
  tests.run("sums in place of " + sizes + " have the tree's bits on every rank", sums_in_place);
  tests.run("groups within the world reduce on their own", groups_apart);
}

}  // namespace llm
