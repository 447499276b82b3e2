#pragma once
#include <cstdint>
#include <vector>

#include "src/base/range.h"

namespace llm {

/// Two forms of the same sums over ranks, with the same bits: the value of ranks [a, b) is
/// value[a, mid) + value[mid, b) with mid = a + (b - a) / 2.
///   direct     any number of ranks, one round: each rank sends each owner its piece
///   recursive  powers of two, log2(n) rounds at distance 1, 2, 4, ...: halves the vector each
///   time, so
///              near neighbours carry most; piece k then belongs to the rank with k's bits reversed
enum class CollectiveForm : std::uint8_t { direct, recursive };

/// A vector of cuts.back() elements in n_ranks pieces, piece k = [cuts[k], cuts[k + 1]); pieces may
/// be empty.
struct CollectiveShape {
  int rank;
  int n_ranks;
  std::vector<std::int64_t> cuts;
};

/// n_ranks pieces as equal as `grain` allows: all bounds but the last are multiples of it.
std::vector<std::int64_t> even_cuts(std::int64_t n_elements, int n_ranks, std::int64_t grain);

/// The piece that `rank` owns after a reduce-scatter and gives to an all-gather.
int piece_of_rank(CollectiveForm form, int rank, int n_ranks);

/// `range` of the vector goes to, or comes from, `peer` (an index in the group).
struct Transfer {
  int peer;
  Range range;
  bool operator==(const Transfer&) const = default;
};

/// Who holds one operand of a sum: this rank's own vector, or the i-th receive of the round.
inline constexpr int own_operand = -1;
struct Addition {
  int into;
  int from;
  bool operator==(const Addition&) const = default;
};

/// Sends go out and receives come into scratch at once; when all are in, the additions run in
/// order. Every receive has the range `kept`: receive i lies in scratch at i * kept.size().
struct ReduceRound {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::vector<Addition> additions;
  Range kept;
};

struct ReduceScatterPlan {
  std::vector<ReduceRound> rounds;
  Range owned;  ///< where this rank's vector holds the sum afterwards
  std::int64_t scratch_elements = 0;
};

/// What `rank` does in a reduce-scatter. Recursive wants a power of two (ContractBroken).
ReduceScatterPlan reduce_scatter_plan(CollectiveForm form, const CollectiveShape& shape);

/// Rounds of an all-gather: receives go to their final place.
struct GatherRound {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
};
std::vector<GatherRound> all_gather_plan(CollectiveForm form, const CollectiveShape& shape);

/// The same sums where the ranks can read and write each other's vectors: each adds up its piece of
/// all vectors where it lies, leaves the sum in all of them, and needs neither scratch nor a
/// gather.
struct InPlacePlan {
  std::vector<Range> segments;      ///< of this rank's piece, each done with before the next
  std::vector<Addition> additions;  ///< over ranks; the last leaves the sum with this rank
};
InPlacePlan in_place_plan(const CollectiveShape& shape, std::int64_t segment_elements);

/// `range` in order, in parts of `elements` but for the last.
std::vector<Range> segments_of(Range range, std::int64_t elements);

/// Root's vector to everyone over a binomial tree: at most one receive, then sends, one a round.
/// All ranks have the same number of rounds, so that a message's round is the same at both ends; a
/// round may be empty.
std::vector<GatherRound> broadcast_plan(int rank, int n_ranks, int root, std::int64_t n_elements);

/// Recursive where it is possible (a power of two above 2), direct elsewhere.
CollectiveForm best_form(int n_ranks);

}  // namespace llm
