#include "schedules/collective.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "src/base/check.h"

namespace llm {
namespace {

bool is_power_of_two(int n) {
  return std::has_single_bit(static_cast<unsigned>(n));
}

int log2_of(int n) {
  return std::countr_zero(static_cast<unsigned>(n));
}

void check_shape(CollectiveForm form, const CollectiveShape& shape) {
  CHECK_CONTRACT(shape.n_ranks >= 1 && shape.rank >= 0 && shape.rank < shape.n_ranks,
                 "a rank is one of its group's");
  CHECK_CONTRACT(shape.cuts.size() == static_cast<std::size_t>(shape.n_ranks) + 1,
                 "a vector has as many pieces as the group has ranks");
  CHECK_CONTRACT(std::is_sorted(shape.cuts.begin(), shape.cuts.end()), "cuts ascend");
  CHECK_CONTRACT(form == CollectiveForm::direct || is_power_of_two(shape.n_ranks),
                 "the recursive form wants a power of two");
}

Range pieces(const CollectiveShape& shape, int first, int last) {
  return {shape.cuts[static_cast<std::size_t>(first)], shape.cuts[static_cast<std::size_t>(last)]};
}

/// The pieces that `rank` still sums after `n_rounds` rounds of halving, as a range of pieces.
Range held_pieces(int rank, int n_ranks, int n_rounds) {
  std::int64_t first = 0;
  std::int64_t count = n_ranks;
  for (int round = 0; round < n_rounds; ++round) {
    count /= 2;
    if ((rank >> round) & 1) first += count;
  }
  return {first, first + count};
}

Range held_range(const CollectiveShape& shape, int rank, int n_rounds) {
  const Range held = held_pieces(rank, shape.n_ranks, n_rounds);
  return pieces(shape, static_cast<int>(held.begin), static_cast<int>(held.end));
}

/// Additions of the tree over ranks [first, last) of which each holds one operand; the result stays
/// with `self` where it is among them. Returns the rank that holds the result.
int tree_additions(int first, int last, int self, std::vector<Addition>& additions) {
  if (last - first == 1) return first;
  const int middle = first + (last - first) / 2;
  const int low = tree_additions(first, middle, self, additions);
  const int high = tree_additions(middle, last, self, additions);
  const int into = high == self ? high : low;  // a + b and b + a have the same bits
  additions.push_back({into, into == low ? high : low});
  return into;
}

ReduceRound direct_round(const CollectiveShape& shape) {
  ReduceRound round;
  round.kept = pieces(shape, shape.rank, shape.rank + 1);
  for (int i = 1; i < shape.n_ranks;
       ++i) {  // each starts with its neighbour, so that no one is hit by all
    const int peer = (shape.rank + i) % shape.n_ranks;
    round.sends.push_back({peer, pieces(shape, peer, peer + 1)});
  }
  for (int peer = 0; peer < shape.n_ranks; ++peer) {
    if (peer != shape.rank) round.receives.push_back({peer, round.kept});
  }
  tree_additions(0, shape.n_ranks, shape.rank, round.additions);
  const auto operand = [&](int rank) {
    return rank == shape.rank ? own_operand : rank < shape.rank ? rank : rank - 1;
  };
  for (Addition& addition : round.additions) {
    addition = {operand(addition.into), operand(addition.from)};
  }
  return round;
}

}  // namespace

std::vector<std::int64_t> even_cuts(std::int64_t n_elements, int n_ranks, std::int64_t grain) {
  CHECK_CONTRACT(n_elements >= 0 && n_ranks >= 1 && grain >= 1, "a vector is cut into pieces");
  const std::int64_t n_grains = (n_elements + grain - 1) / grain;
  std::vector<std::int64_t> cuts;
  for (std::int64_t k = 0; k <= n_ranks; ++k) {
    cuts.push_back(std::min(n_elements, n_grains * k / n_ranks * grain));
  }
  return cuts;
}

int piece_of_rank(CollectiveForm form, int rank, int n_ranks) {
  if (form == CollectiveForm::direct) return rank;
  return static_cast<int>(held_pieces(rank, n_ranks, log2_of(n_ranks)).begin);
}

ReduceScatterPlan reduce_scatter_plan(CollectiveForm form, const CollectiveShape& shape) {
  check_shape(form, shape);
  ReduceScatterPlan plan;
  const int piece = piece_of_rank(form, shape.rank, shape.n_ranks);
  plan.owned = pieces(shape, piece, piece + 1);
  if (shape.n_ranks == 1) return plan;
  if (form == CollectiveForm::direct) {
    plan.rounds.push_back(direct_round(shape));
  } else {
    for (int n = 0; n < log2_of(shape.n_ranks); ++n) {
      const int peer = shape.rank ^ (1 << n);
      ReduceRound round;
      round.kept = held_range(shape, shape.rank, n + 1);
      round.sends.push_back({peer, held_range(shape, peer, n + 1)});
      round.receives.push_back({peer, round.kept});
      round.additions.push_back({own_operand, 0});
      plan.rounds.push_back(round);
    }
  }
  for (const ReduceRound& round : plan.rounds) {
    const auto n_receives = static_cast<std::int64_t>(round.receives.size());
    plan.scratch_elements = std::max(plan.scratch_elements, n_receives * round.kept.size());
  }
  return plan;
}

std::vector<GatherRound> all_gather_plan(CollectiveForm form, const CollectiveShape& shape) {
  check_shape(form, shape);
  std::vector<GatherRound> rounds;
  if (shape.n_ranks == 1) return rounds;
  if (form == CollectiveForm::direct) {
    GatherRound round;
    for (int i = 1; i < shape.n_ranks; ++i) {
      const int peer = (shape.rank + i) % shape.n_ranks;
      round.sends.push_back({peer, pieces(shape, shape.rank, shape.rank + 1)});
      round.receives.push_back({peer, pieces(shape, peer, peer + 1)});
    }
    rounds.push_back(round);
    return rounds;
  }
  for (int n = log2_of(shape.n_ranks) - 1; n >= 0; --n) {
    const int peer = shape.rank ^ (1 << n);
    GatherRound round;
    round.sends.push_back({peer, held_range(shape, shape.rank, n + 1)});
    round.receives.push_back({peer, held_range(shape, peer, n + 1)});
    rounds.push_back(round);
  }
  return rounds;
}

std::vector<Range> segments_of(Range range, std::int64_t elements) {
  CHECK_CONTRACT(elements >= 1, "a segment holds something");
  std::vector<Range> segments;
  for (std::int64_t begin = range.begin; begin < range.end; begin += elements) {
    segments.push_back({begin, std::min(begin + elements, range.end)});
  }
  return segments;
}

InPlacePlan in_place_plan(const CollectiveShape& shape, std::int64_t segment_elements) {
  check_shape(CollectiveForm::direct, shape);
  InPlacePlan plan;
  plan.segments = segments_of(pieces(shape, shape.rank, shape.rank + 1), segment_elements);
  tree_additions(0, shape.n_ranks, shape.rank, plan.additions);
  return plan;
}

std::vector<GatherRound> broadcast_plan(int rank, int n_ranks, int root, std::int64_t n_elements) {
  CHECK_CONTRACT(0 <= root && root < n_ranks && 0 <= rank && rank < n_ranks,
                 "the root is one of the group's");
  const int place = (rank - root + n_ranks) % n_ranks;  // the root's place is 0
  const Range all{0, n_elements};
  std::vector<GatherRound> rounds;
  int distance = 1;
  while (distance < n_ranks) distance *= 2;
  for (distance /= 2; distance >= 1; distance /= 2) {
    GatherRound round;
    if (place % (2 * distance) == 0 && place + distance < n_ranks) {
      round.sends.push_back({(place + distance + root) % n_ranks, all});
    }
    if (place % (2 * distance) == distance) {
      round.receives.push_back({(place - distance + root) % n_ranks, all});
    }
    rounds.push_back(round);
  }
  return rounds;
}

CollectiveForm best_form(int n_ranks) {
  return n_ranks > 2 && is_power_of_two(n_ranks) ? CollectiveForm::recursive
                                                 : CollectiveForm::direct;
}

}  // namespace llm
