#include "schedules/collective.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "src/base/error.h"
#include "tests/support/values.h"

using namespace llm;

namespace {

using Cuts = std::vector<std::int64_t>;
using Vectors = std::vector<std::vector<float>>;  // one a rank

bool is_power_of_two(int n) {
  return std::has_single_bit(static_cast<unsigned>(n));
}

std::vector<CollectiveForm> forms_for(int n_ranks) {
  if (is_power_of_two(n_ranks)) return {CollectiveForm::direct, CollectiveForm::recursive};
  return {CollectiveForm::direct};
}

/// Cuts of a grid of shapes: even with several grains, growing, with empty pieces, empty.
std::vector<Cuts> shapes_for(int n_ranks) {
  std::vector<Cuts> shapes;
  for (const std::int64_t n : {0, 1, 2, 3, 5, 16, 31, 64, 100, 257}) {
    for (const std::int64_t grain : {1, 4, 64}) shapes.push_back(even_cuts(n, n_ranks, grain));
  }
  Cuts growing{0};
  Cuts holes{0};
  Cuts last{0};
  for (int k = 0; k < n_ranks; ++k) {
    growing.push_back(growing.back() + 3 * k + 1);
    holes.push_back(holes.back() + (k % 2 == 0 ? 0 : 11));
    last.push_back(k == n_ranks - 1 ? 29 : 0);
  }
  shapes.insert(shapes.end(), {growing, holes, last});
  return shapes;
}

template <typename Plan>
std::vector<Plan> plans_of(int n_ranks, const Cuts& cuts, CollectiveForm form,
                           Plan (*make)(CollectiveForm, const CollectiveShape&)) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < n_ranks; ++rank) plans.push_back(make(form, {rank, n_ranks, cuts}));
  return plans;
}

Vectors own_values(int n_ranks, std::int64_t n) {
  Vectors vectors;
  for (int rank = 0; rank < n_ranks; ++rank) vectors.push_back(values_of(rank, n));
  return vectors;
}

float* at(std::vector<float>& values, std::int64_t i) {
  return values.data() + static_cast<std::ptrdiff_t>(i);
}

/// All ranks' rounds at once: what a round sends is what the vectors held at its begin.
void carry_out(const std::vector<ReduceScatterPlan>& plans, Vectors& vectors) {
  for (std::size_t round = 0; round < plans.front().rounds.size(); ++round) {
    const Vectors before = vectors;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      const ReduceRound& here = plans[rank].rounds[round];
      std::vector<float> scratch(static_cast<std::size_t>(plans[rank].scratch_elements));
      const std::int64_t n = here.kept.size();
      for (std::size_t i = 0; i < here.receives.size(); ++i) {
        std::vector<float> sent = before[static_cast<std::size_t>(here.receives[i].peer)];
        std::copy_n(at(sent, here.kept.begin), n, at(scratch, static_cast<std::int64_t>(i) * n));
      }
      const auto operand = [&](int place) {
        return place == own_operand ? at(vectors[rank], here.kept.begin) : at(scratch, place * n);
      };
      for (const Addition& addition : here.additions) {
        for (std::int64_t i = 0; i < n; ++i) operand(addition.into)[i] += operand(addition.from)[i];
      }
    }
  }
}

void carry_out(const std::vector<std::vector<GatherRound>>& plans, Vectors& vectors) {
  for (std::size_t round = 0; round < plans.front().size(); ++round) {
    const Vectors before = vectors;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      for (const Transfer& from : plans[rank][round].receives) {
        std::vector<float> sent = before[static_cast<std::size_t>(from.peer)];
        std::copy_n(at(sent, from.range.begin), from.range.size(),
                    at(vectors[rank], from.range.begin));
      }
    }
  }
}

/// What `rank` does to the vectors of all.
void sum_piece_in_place(int rank, const Cuts& cuts, Vectors& vectors) {
  const auto n_ranks = static_cast<int>(vectors.size());
  const InPlacePlan plan = in_place_plan({rank, n_ranks, cuts}, 5);
  const auto of = [&](int member, const Range& segment) {
    return at(vectors[static_cast<std::size_t>(member)], segment.begin);
  };
  for (const Range& segment : plan.segments) {
    for (const Addition& addition : plan.additions) {
      for (std::int64_t i = 0; i < segment.size(); ++i) {
        of(addition.into, segment)[i] += of(addition.from, segment)[i];
      }
    }
    for (int member = 0; member < n_ranks; ++member) {
      std::copy_n(of(rank, segment), segment.size(), of(member, segment));
    }
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

/// Every (sender, receiver, round) and its range.
using Traffic = std::map<std::tuple<int, int, std::size_t>, Range>;
struct BothEnds {
  Traffic sends;
  Traffic receives;
};

template <typename Round>
void add_traffic(BothEnds& ends, int rank, const std::vector<Round>& rounds) {
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    for (const Transfer& to : rounds[round].sends) {
      REQUIRE(ends.sends.emplace(std::tuple(rank, to.peer, round), to.range).second);
    }
    for (const Transfer& from : rounds[round].receives) {
      REQUIRE(ends.receives.emplace(std::tuple(from.peer, rank, round), from.range).second);
    }
  }
}

std::int64_t elements_sent(const BothEnds& ends) {
  std::int64_t n = 0;
  for (const auto& [who, range] : ends.sends) n += range.size();
  return n;
}

constexpr int most_ranks = 16;

}  // namespace

TEST_CASE("a reduce-scatter leaves the bits of the tree sum with the owner, in every form") {
  int n_plans = 0;
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    for (const Cuts& cuts : shapes_for(n_ranks)) {
      const std::vector<float> sums = tree_sums(n_ranks, cuts.back());
      for (const CollectiveForm form : forms_for(n_ranks)) {
        const auto plans = plans_of(n_ranks, cuts, form, reduce_scatter_plan);
        Vectors vectors = own_values(n_ranks, cuts.back());
        carry_out(plans, vectors);
        for (std::size_t rank = 0; rank < plans.size(); ++rank) {
          INFO("rank " << rank << " of " << n_ranks << ", " << cuts.back() << " elements");
          REQUIRE(same_bits(vectors[rank], sums, plans[rank].owned));
          ++n_plans;
        }
      }
    }
  }
  CHECK(n_plans == (16 * 17 / 2 + 1 + 2 + 4 + 8 + 16) * 33);
}

TEST_CASE("sums in place leave the bits of the tree sum everywhere, whichever rank is first") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    for (const Cuts& cuts : shapes_for(n_ranks)) {
      const std::vector<float> sums = tree_sums(n_ranks, cuts.back());
      for (const bool reversed : {false, true}) {
        Vectors vectors = own_values(n_ranks, cuts.back());
        for (int i = 0; i < n_ranks; ++i) {
          sum_piece_in_place(reversed ? n_ranks - 1 - i : i, cuts, vectors);
        }
        INFO(n_ranks << " ranks, " << cuts.back() << " elements");
        REQUIRE(vectors == Vectors(static_cast<std::size_t>(n_ranks), sums));
      }
    }
  }
}

TEST_CASE("segments cut a range in order, all but the last of the size asked for") {
  CHECK(segments_of({3, 3}, 4).empty());
  CHECK(segments_of({3, 12}, 4) == std::vector<Range>{{3, 7}, {7, 11}, {11, 12}});
  CHECK(segments_of({0, 8}, 4) == std::vector<Range>{{0, 4}, {4, 8}});
  CHECK_THROWS_AS(segments_of({0, 8}, 0), ContractBroken);
}

TEST_CASE("sums of integers are the sums of integers") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    const Cuts cuts = even_cuts(101, n_ranks, 1);
    for (const CollectiveForm form : forms_for(n_ranks)) {
      const auto plans = plans_of(n_ranks, cuts, form, reduce_scatter_plan);
      Vectors vectors;
      for (int rank = 0; rank < n_ranks; ++rank) {
        vectors.emplace_back(101, static_cast<float>(rank + 1));
      }
      carry_out(plans, vectors);
      for (std::size_t rank = 0; rank < plans.size(); ++rank) {
        for (std::int64_t i = plans[rank].owned.begin; i < plans[rank].owned.end; ++i) {
          REQUIRE(*at(vectors[rank], i) == static_cast<float>(n_ranks * (n_ranks + 1) / 2));
        }
      }
    }
  }
}

TEST_CASE("owned pieces cut the vector: each element has one owner") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    for (const Cuts& cuts : shapes_for(n_ranks)) {
      for (const CollectiveForm form : forms_for(n_ranks)) {
        std::vector<int> owners(static_cast<std::size_t>(cuts.back()), 0);
        for (const auto& plan : plans_of(n_ranks, cuts, form, reduce_scatter_plan)) {
          for (std::int64_t i = plan.owned.begin; i < plan.owned.end; ++i) {
            ++owners[static_cast<std::size_t>(i)];
          }
        }
        REQUIRE(owners == std::vector<int>(owners.size(), 1));
      }
    }
  }
}

TEST_CASE("every send has its receive, with the same range in the same round") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    for (const Cuts& cuts : shapes_for(n_ranks)) {
      for (const CollectiveForm form : forms_for(n_ranks)) {
        BothEnds reduce;
        BothEnds gather;
        BothEnds cast;
        for (int rank = 0; rank < n_ranks; ++rank) {
          const CollectiveShape shape{rank, n_ranks, cuts};
          add_traffic(reduce, rank, reduce_scatter_plan(form, shape).rounds);
          add_traffic(gather, rank, all_gather_plan(form, shape));
          add_traffic(cast, rank, broadcast_plan(rank, n_ranks, n_ranks / 2, cuts.back()));
        }
        REQUIRE(reduce.sends == reduce.receives);
        REQUIRE(gather.sends == gather.receives);
        REQUIRE(cast.sends == cast.receives);
        // (D-1)/D of the vector for each rank: all together send D-1 vectors.
        REQUIRE(elements_sent(reduce) == (n_ranks - 1) * cuts.back());
        REQUIRE(elements_sent(gather) == (n_ranks - 1) * cuts.back());
        REQUIRE(elements_sent(cast) == (n_ranks - 1) * cuts.back());
      }
    }
  }
}

TEST_CASE("with equal pieces each rank sends (D-1)/D of the vector") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    const std::int64_t n = 16 * n_ranks;
    for (const CollectiveForm form : forms_for(n_ranks)) {
      for (int rank = 0; rank < n_ranks; ++rank) {
        const CollectiveShape shape{rank, n_ranks, even_cuts(n, n_ranks, 1)};
        BothEnds reduce;
        BothEnds gather;
        add_traffic(reduce, rank, reduce_scatter_plan(form, shape).rounds);
        add_traffic(gather, rank, all_gather_plan(form, shape));
        REQUIRE(elements_sent(reduce) == n - 16);
        REQUIRE(elements_sent(gather) == n - 16);
      }
    }
  }
}

TEST_CASE("an all-gather brings every rank the pieces that a reduce-scatter left") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    for (const Cuts& cuts : shapes_for(n_ranks)) {
      const std::vector<float> sums = tree_sums(n_ranks, cuts.back());
      for (const CollectiveForm form : forms_for(n_ranks)) {
        Vectors vectors = own_values(n_ranks, cuts.back());
        carry_out(plans_of(n_ranks, cuts, form, reduce_scatter_plan), vectors);
        carry_out(plans_of(n_ranks, cuts, form, all_gather_plan), vectors);
        for (const std::vector<float>& vector : vectors) {
          REQUIRE(same_bits(vector, sums, {0, cuts.back()}));
        }
      }
    }
  }
}

TEST_CASE("a broadcast reaches every rank from every root, in as many rounds on each") {
  for (int n_ranks = 1; n_ranks <= most_ranks; ++n_ranks) {
    for (int root = 0; root < n_ranks; ++root) {
      std::vector<std::vector<GatherRound>> plans;
      for (int rank = 0; rank < n_ranks; ++rank) {
        plans.push_back(broadcast_plan(rank, n_ranks, root, 5));
        REQUIRE(plans.back().size() == std::bit_width(static_cast<unsigned>(n_ranks - 1)));
        std::size_t n_receives = 0;
        for (const GatherRound& round : plans.back()) n_receives += round.receives.size();
        REQUIRE(n_receives == (rank == root ? 0 : 1));
      }
      Vectors vectors = own_values(n_ranks, 5);
      const std::vector<float> roots = vectors[static_cast<std::size_t>(root)];
      carry_out(plans, vectors);
      for (const std::vector<float>& vector : vectors) REQUIRE(vector == roots);
    }
  }
}

TEST_CASE("the recursive form gives piece k to the rank with k's bits reversed") {
  CHECK(piece_of_rank(CollectiveForm::recursive, 1, 8) == 4);
  CHECK(piece_of_rank(CollectiveForm::recursive, 3, 8) == 6);
  CHECK(piece_of_rank(CollectiveForm::recursive, 2, 4) == 1);
  CHECK(piece_of_rank(CollectiveForm::direct, 2, 4) == 2);
}

TEST_CASE("near neighbours carry most in the recursive form: half the vector at distance 1") {
  const ReduceScatterPlan plan =
      reduce_scatter_plan(CollectiveForm::recursive, {5, 8, even_cuts(800, 8, 1)});
  REQUIRE(plan.rounds.size() == 3);
  const auto sends = [&](std::size_t round) { return plan.rounds[round].sends.front(); };
  CHECK(sends(0).peer == 4);
  CHECK(sends(0).range.size() == 400);
  CHECK(sends(1).peer == 7);
  CHECK(sends(1).range.size() == 200);
  CHECK(sends(2).peer == 1);
  CHECK(sends(2).range.size() == 100);
}

TEST_CASE("even cuts ascend, end at the size, and break at multiples of the grain") {
  for (const std::int64_t n : {0, 1, 63, 64, 65, 1000}) {
    for (int n_ranks = 1; n_ranks <= 9; ++n_ranks) {
      for (const std::int64_t grain : {1, 7, 64}) {
        const Cuts cuts = even_cuts(n, n_ranks, grain);
        REQUIRE(cuts.size() == static_cast<std::size_t>(n_ranks) + 1);
        REQUIRE(cuts.front() == 0);
        REQUIRE(cuts.back() == n);
        for (std::size_t k = 1; k < cuts.size(); ++k) {
          REQUIRE(cuts[k - 1] <= cuts[k]);
          REQUIRE((cuts[k] % grain == 0 || cuts[k] == n));
          REQUIRE(cuts[k] - cuts[k - 1] <= (n / n_ranks / grain + 1) * grain);
        }
      }
    }
  }
}

TEST_CASE("a shape that cannot be is refused") {
  CHECK_THROWS_AS(reduce_scatter_plan(CollectiveForm::recursive, {0, 3, {0, 1, 2, 3}}),
                  ContractBroken);
  CHECK_THROWS_AS(reduce_scatter_plan(CollectiveForm::direct, {3, 3, {0, 1, 2, 3}}),
                  ContractBroken);
  CHECK_THROWS_AS(all_gather_plan(CollectiveForm::direct, {0, 3, {0, 1, 2}}), ContractBroken);
  CHECK_THROWS_AS(all_gather_plan(CollectiveForm::direct, {0, 2, {0, 2, 1}}), ContractBroken);
  CHECK_THROWS_AS(broadcast_plan(0, 2, 2, 1), ContractBroken);
}

TEST_CASE("the best form is recursive for powers of two above two alone") {
  for (int n = 1; n <= 16; ++n) {
    const bool recursive = n > 2 && is_power_of_two(n);
    CHECK((best_form(n) == CollectiveForm::recursive) == recursive);
  }
}
