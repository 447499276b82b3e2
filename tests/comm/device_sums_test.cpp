// Sums over a group by NCCL's own collectives, agreed on before they are launched.
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/comm/nccl/nccl_sums.h"
#include "tests/comm/device_group.h"
#include "tests/support/device_values.h"
#include "tests/support/values.h"

namespace llm {
namespace {

using test::DeviceRanks;
using test::Values;
using test::Way;

constexpr int tag = 20;

/// The vectors of one rank, and what sums them.
struct SumMember {
  SumMember(Transport& transport, const std::vector<int>& ranks, std::int64_t n, int n_sums)
      : group(transport, ranks), sums(std::make_unique<NcclSums>(group, *llm_nccl_calls())) {
    for (int s = 0; s < n_sums; ++s) {
      vectors.emplace_back(values_of(10 * s + group.index, n), Device::cuda);
    }
  }
  LibrarySum sum(int number, const std::vector<std::int64_t>& cuts) const {
    LibrarySum one;
    one.number = number;
    one.vector = vectors[static_cast<std::size_t>(number)].view();
    one.cuts = cuts;
    return one;
  }
  Group group;
  std::unique_ptr<NcclSums> sums;
  std::deque<Values> vectors;
  int n_done = 0;
};

Task<> begin(SumMember& member) {
  const CollectiveId id(tag, 0, 0);
  co_await begin_sums(member.group, id, *member.sums);
}

Task<> sum_one(SumMember& member, int number, std::vector<std::int64_t> cuts) {
  const CollectiveId id(tag + 1 + number, 0, number);
  LibrarySum one = member.sum(number, cuts);
  co_await sum_by_library(member.group, *member.sums, id, std::move(one));
  ++member.n_done;
}

/// Members of a group of `n_ranks` among one rank more, which has no part in it.
struct Members {
  Members(int n_ranks, std::uint64_t seed, std::int64_t n, int n_sums)
      : ranks(Way::nccl, n_ranks + 1, seed) {
    std::vector<int> group;
    for (int r = 1; r <= n_ranks; ++r) group.push_back(r);
    for (const int r : group) {
      SumMember& member = all.emplace_back(ranks.rank(r), group, n, n_sums);
      ranks.loop.spawn("begin", begin(member));
    }
  }
  ~Members() {
    ranks.loop.drop_actors();
    all.clear();
  }
  DeviceRanks ranks;
  std::deque<SumMember> all;
};

bool is_near_sum(float value, int number, int n_ranks, std::int64_t n, std::size_t i) {
  double sum = 0;
  double size = 0;
  for (int r = 0; r < n_ranks; ++r) {
    const float operand = values_of(10 * number + r, n)[i];
    sum += double{operand};
    size += std::abs(double{operand});
  }
  return std::abs(double{value} - sum) <= 1e-6 * size;
}

/// Sums given in an order drawn for each rank; all their bits, rank by rank.
std::vector<std::vector<float>> drawn_sums(int n_ranks, std::uint64_t seed,
                                           const std::vector<std::int64_t>& cuts, std::int64_t n) {
  constexpr int n_sums = 5;
  Members members(n_ranks, seed, n, n_sums);
  std::uint64_t n_draws = 0;
  for (SumMember& member : members.all) {
    std::vector<int> left{0, 1, 2, 3, 4};
    while (!left.empty()) {
      const auto drawn = philox_at(seed, n_draws++)[0] % left.size();
      members.ranks.loop.spawn("sum", sum_one(member, left[drawn], cuts));
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(drawn));
      if (n_draws % 2 == 0) members.ranks.loop.run_until_idle();
    }
  }
  members.ranks.loop.run();
  std::vector<std::vector<float>> bits;
  for (const SumMember& member : members.all) {
    CHECK(member.n_done == n_sums);
    for (const Values& vector : member.vectors) bits.push_back(vector.read());
  }
  return bits;
}

}  // namespace

TEST_CASE("NCCL's sums are all ranks' values where they belong, the same bits in every timing") {
  constexpr std::int64_t n = 60;
  for (int n_ranks = 2; n_ranks <= 4; ++n_ranks) {
    std::vector<std::int64_t> equal{0};
    for (int k = 1; k <= n_ranks; ++k) equal.push_back(n / n_ranks * k);
    std::vector<std::int64_t> unequal = equal;
    unequal[1] = 7;
    if (n_ranks > 2) unequal[2] = 7;  // an empty piece
    for (const auto& cuts : {std::vector<std::int64_t>{}, equal, unequal}) {
      const auto expected = drawn_sums(n_ranks, 1, cuts, n);
      REQUIRE(drawn_sums(n_ranks, 2, cuts, n) == expected);
      REQUIRE(drawn_sums(n_ranks, 3, cuts, n) == expected);
      for (std::size_t at = 0; at < expected.size(); ++at) {
        const auto member = at / 5;
        const int number = static_cast<int>(at % 5);
        const std::vector<float> own = values_of(10 * number + static_cast<int>(member), n);
        for (std::size_t i = 0; i < own.size(); ++i) {
          const auto place = static_cast<std::int64_t>(i);
          const bool is_sum = cuts.empty() || (cuts[member] <= place && place < cuts[member + 1]);
          REQUIRE((is_sum ? is_near_sum(expected[at][i], number, n_ranks, n, i)
                          : expected[at][i] == own[i]));
        }
      }
    }
  }
  CHECK(emulator::n_communicators() == 0);
}

TEST_CASE("nothing is launched before every member has come to a sum, nor out of turn") {
  Members members(3, 4, 8, 2);
  const std::int64_t before = emulator::n_sums();
  for (SumMember& member : members.all) members.ranks.loop.spawn("sum", sum_one(member, 1, {}));
  for (const int r : {0, 2}) {
    members.ranks.loop.spawn("sum", sum_one(members.all[static_cast<std::size_t>(r)], 0, {}));
  }
  for (int n = 0; n < 50; ++n) members.ranks.loop.run_until_idle();
  CHECK(emulator::n_sums() == before);
  members.ranks.loop.spawn("sum", sum_one(members.all[1], 0, {}));
  members.ranks.loop.run();
  CHECK(emulator::n_sums() == before + 2);
}

TEST_CASE("ranks that would sum different vectors are told both sides, and NCCL nothing") {
  for (int n_ranks = 2; n_ranks <= 4; ++n_ranks) {
    std::vector<std::int64_t> equal{0};
    for (int k = 1; k <= n_ranks; ++k) equal.push_back(12 / n_ranks * k);
    std::vector<std::int64_t> unequal = equal;
    ++unequal[1];
    for (int odd = 0; odd < 2 * n_ranks; ++odd) {
      const bool is_whole = odd >= n_ranks;
      Members members(n_ranks, 5, 12, 1);
      const std::int64_t before = emulator::n_sums();
      for (int r = 0; r < n_ranks; ++r) {
        const bool is_odd = r == odd % n_ranks;
        const auto cuts = !is_odd ? equal : (is_whole ? std::vector<std::int64_t>{} : unequal);
        members.ranks.loop.spawn("sum", sum_one(members.all[static_cast<std::size_t>(r)], 0, cuts));
      }
      CHECK_THROWS_WITH(
          members.ranks.loop.run(),
          Catch::Contains("ranks would sum different vectors as bucket 0 of step 0: rank ") &&
              Catch::Contains("[12 f32 in equal pieces ") &&
              Catch::Contains(is_whole ? "[12 f32 for all]" : "[12 f32 in pieces "));
      CHECK(emulator::n_sums() == before);
    }
  }
}

TEST_CASE("a member that is about another bucket is an error with both headers") {
  Members members(2, 6, 8, 2);
  const CollectiveId other(tag + 1, 3, 1);
  members.ranks.loop.spawn("sum", sum_one(members.all[0], 0, {}));
  LibrarySum one = members.all[1].sum(1, {});
  members.ranks.loop.spawn(
      "sum", sum_by_library(members.all[1].group, *members.all[1].sums, other, std::move(one)));
  CHECK_THROWS_WITH(members.ranks.loop.run(),
                    Catch::Contains("sum_announced step 3 index 1 part 0: 24 u8") &&
                        Catch::Contains("sum_announced step 0 index 0 part 0: 24 u8"));
}

TEST_CASE("an error that NCCL reports later is one line with the group, and ends its sums") {
  {
    Members members(2, 7, 8, 2);
    for (SumMember& member : members.all) members.ranks.loop.spawn("sum", sum_one(member, 0, {}));
    members.ranks.loop.run();
    members.ranks.loop.spawn("sum", sum_one(members.all[0], 1, {}));  // nobody else comes
    emulator::fail_nccl(ncclRemoteError);
    CHECK_THROWS_WITH(members.ranks.loop.run(),
                      "NCCL: remote process exited or there was a network error (sums over ranks "
                      "1, 2)");
  }
  emulator::fail_nccl(ncclSuccess);
  CHECK(emulator::n_communicators() == 0);
}

TEST_CASE("sums may end in flight, and their memory goes with them") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Members members(3, seed, 40, 3);
    for (int s = 0; s < 3; ++s) {
      for (SumMember& member : members.all) members.ranks.loop.spawn("sum", sum_one(member, s, {}));
    }
    for (std::uint64_t n = 0; n < seed; ++n) members.ranks.loop.run_until_idle();
  }
  CHECK(emulator::n_communicators() == 0);
}

}  // namespace llm
