#include "src/comm/collective.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "tensor/storage.h"
#include "tests/comm/loopback_group.h"

using namespace llm;

namespace {

using Cuts = std::vector<std::int64_t>;

Task<> all_reduce(Member& member) {
  co_await reduce_scatter(member.group, member.queue, member.reduce, member.id, member.vector(),
                          member.scratch_view());
  co_await all_gather(member.group, member.gather, member.id, member.vector());
}

Task<> reduce_only(Member& member) {
  co_await reduce_scatter(member.group, member.queue, member.reduce, member.id, member.vector(),
                          member.scratch_view());
}

constexpr std::int64_t n_in_place = 157;
constexpr Range first_part{0, 96};
constexpr Range second_part{96, n_in_place};

/// One rank of sums in place of two parts of a vector; rank r's holds values_of(r).
struct InPlaceMember {
  InPlaceMember(Group& group_, Queue& queue_)
      : group(group_), queue(queue_), memory(Storage::shared(n_in_place * 4)) {
    const std::vector<float> values = values_of(group.index, n_in_place);
    std::memcpy(vector().data(), values.data(), values.size() * sizeof(float));
  }
  MutView vector() const { return memory.view(Dtype::f32, {n_in_place}); }
  InPlacePlan plan(const Range& range) const {
    return in_place_plan({group.index, group.size(), even_cuts(range.size(), group.size(), 4)}, 7);
  }
  Group& group;
  Queue& queue;
  Storage memory;
  GroupVectors vectors;
};

Task<> sum_both_parts(InPlaceMember& member) {
  std::vector<SharedHandle> handles(static_cast<std::size_t>(member.group.size()));
  handles[static_cast<std::size_t>(member.group.index)] = member.memory.handle();
  const CollectiveId id(3, 0, 0);
  co_await exchange_handles(member.group, id, handles);
  member.vectors = GroupVectors(member.group.index, member.vector(), handles);
  for (const Range& range : {first_part, second_part}) {
    const InPlacePlan plan = member.plan(range);
    co_await sum_in_place(member.group, member.queue, plan, id, member.vectors, range);
  }
}

std::vector<float> tree_sums(int n_ranks, std::int64_t n) {
  std::vector<float> sums;
  for (std::int64_t i = 0; i < n; ++i) sums.push_back(tree_sum(0, n_ranks, i));
  return sums;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, Range range) {
  return range.empty() || std::memcmp(a.data() + range.begin, b.data() + range.begin,
                                      static_cast<std::size_t>(range.size()) * 4) == 0;
}

bool is_power_of_two(int n) {
  return (n & (n - 1)) == 0;
}

/// All-reduces of all sizes at once, one tag each, under one seed. True when every rank has the
/// bits of the tree.
bool all_have_the_tree(int n_ranks, CollectiveForm form, const std::vector<Cuts>& shapes,
                       std::uint64_t seed) {
  LoopbackGroup ranks(n_ranks, seed);
  std::deque<Member> members;
  for (int rank = 0; rank < n_ranks; ++rank) {
    for (std::size_t n = 0; n < shapes.size(); ++n) {
      Member& member = members.emplace_back(ranks.group(rank), ranks.queue(rank), form, shapes[n],
                                            static_cast<int>(n));
      ranks.loop.spawn(fmt::format("rank {} vector {}", rank, n), all_reduce(member));
    }
  }
  ranks.loop.run();
  for (const Member& member : members) {
    const std::int64_t n = member.shape.cuts.back();
    if (!same_bits(member.values, tree_sums(n_ranks, n), {0, n})) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("all-reduces of every size and rank count have the tree's bits on all ranks") {
  for (int n_ranks = 1; n_ranks <= 8; ++n_ranks) {
    std::vector<Cuts> shapes;
    for (const std::int64_t n : {0, 1, 2, 3, 7, 64, 1001}) {
      shapes.push_back(even_cuts(n, n_ranks, 1));
      shapes.push_back(even_cuts(n, n_ranks, 64));
    }
    shapes.push_back(even_cuts(100'003, n_ranks, 4096));
    for (const CollectiveForm form : {CollectiveForm::direct, CollectiveForm::recursive}) {
      if (form == CollectiveForm::recursive && !is_power_of_two(n_ranks)) continue;
      INFO(n_ranks << " ranks");
      CHECK(all_have_the_tree(n_ranks, form, shapes, 1));
    }
  }
}

TEST_CASE("the bits are the same for 500 orders of delivery") {
  constexpr std::uint64_t n_seeds = 500;
  for (std::uint64_t seed = 0; seed < n_seeds; ++seed) {
    const int n_ranks = 2 + static_cast<int>(seed % 7);
    const bool recursive = is_power_of_two(n_ranks) && seed % 2 == 0;
    INFO("seed " << seed << ", " << n_ranks << " ranks");
    REQUIRE(all_have_the_tree(n_ranks,
                              recursive ? CollectiveForm::recursive : CollectiveForm::direct,
                              {even_cuts(37, n_ranks, 4), even_cuts(5, n_ranks, 1)}, seed));
  }
}

TEST_CASE("after a reduce-scatter each rank owns its piece of the sum") {
  for (int n_ranks = 1; n_ranks <= 8; ++n_ranks) {
    LoopbackGroup ranks(n_ranks, 3);
    std::deque<Member> members;
    const Cuts cuts = even_cuts(997, n_ranks, 1);
    for (int rank = 0; rank < n_ranks; ++rank) {
      ranks.loop.spawn("reduce",
                       reduce_only(members.emplace_back(ranks.group(rank), ranks.queue(rank),
                                                        best_form(n_ranks), cuts, 1)));
    }
    ranks.loop.run();
    std::int64_t n_owned = 0;
    for (const Member& member : members) {
      CHECK(same_bits(member.values, tree_sums(n_ranks, 997), member.reduce.owned));
      n_owned += member.reduce.owned.size();
    }
    CHECK(n_owned == 997);
  }
}

TEST_CASE("sums in place have the tree's bits on all ranks for every order of delivery") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const int n_ranks = 1 + static_cast<int>(seed % 8);
    INFO("seed " << seed << ", " << n_ranks << " ranks");
    LoopbackGroup ranks(n_ranks, seed);
    std::deque<InPlaceMember> members;
    for (int rank = 0; rank < n_ranks; ++rank) {
      InPlaceMember& member = members.emplace_back(ranks.group(rank), ranks.queue(rank));
      ranks.loop.spawn(fmt::format("rank {}", rank), sum_both_parts(member));
    }
    ranks.loop.run();
    for (const InPlaceMember& member : members) {
      const float* const values = member.memory.view(Dtype::f32, {n_in_place}).as<float>();
      REQUIRE(std::vector<float>(values, values + n_in_place) == tree_sums(n_ranks, n_in_place));
    }
    const std::int64_t n_messages = (n_ranks - 1) * (1 + 2 * 2);
    REQUIRE(ranks.network.rank(0).counts().messages_sent == n_messages);
  }
}

TEST_CASE("the bytes on the wire are those of the plan") {
  LoopbackGroup ranks(4, 9);
  std::deque<Member> members;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.loop.spawn("reduce", all_reduce(members.emplace_back(ranks.group(rank), ranks.queue(rank),
                                                               CollectiveForm::recursive,
                                                               even_cuts(4096, 4, 1), 1)));
  }
  ranks.loop.run();
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(ranks.network.rank(rank).counts().bytes_sent == 2 * 3 * 4096);
    CHECK(ranks.network.rank(rank).counts().messages_sent == 4);
  }
}

TEST_CASE("a broadcast reaches 1 to 8 ranks from every root under every order of delivery") {
  int n_broadcasts = 0;
  for (int n_ranks = 1; n_ranks <= 8; ++n_ranks) {
    for (int root = 0; root < n_ranks; ++root) {
      for (const std::int64_t n : {0, 1, 9, 5000}) {
        LoopbackGroup ranks(n_ranks, static_cast<std::uint64_t>(n + root));
        std::deque<std::vector<GatherRound>> plans;
        std::deque<std::vector<float>> values;
        for (int rank = 0; rank < n_ranks; ++rank) {
          plans.push_back(broadcast_plan(rank, n_ranks, root, n));
          values.push_back(values_of(rank, n));
          const MutView vector(values.back().data(), {n});
          ranks.loop.spawn("broadcast", broadcast(ranks.group(rank), plans.back(),
                                                  CollectiveId(2, 1, 0), vector));
        }
        ranks.loop.run();
        for (const std::vector<float>& one : values) REQUIRE(one == values_of(root, n));
        ++n_broadcasts;
      }
    }
  }
  CHECK(n_broadcasts == 36 * 4);
}

TEST_CASE("ranks that cut one vector differently get an error that shows both sides") {
  LoopbackGroup ranks(2, 1);
  Member one(ranks.group(0), ranks.queue(0), CollectiveForm::direct, {0, 10, 20}, 1);
  Member other(ranks.group(1), ranks.queue(1), CollectiveForm::direct, {0, 12, 20}, 1);
  ranks.loop.spawn("one", reduce_only(one));
  ranks.loop.spawn("other", reduce_only(other));
  CHECK_THROWS_WITH(ranks.loop.run(),
                    Catch::Contains("partial_sum step 1 index 1 part 0: 12 f32") ||
                        Catch::Contains("partial_sum step 1 index 1 part 0: 8 f32"));
}
