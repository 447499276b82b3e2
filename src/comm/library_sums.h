#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "src/comm/collective.h"
#include "src/comm/transport.h"
#include "src/rt/task.h"
#include "tensor/view.h"

namespace llm {

/// One vector's sum over a group, by a library.
struct LibrarySum {
  std::int64_t number = 0;  ///< of the group's sums, from 0
  MutView vector;           ///< (n) f32, on a device
  /// Empty: every rank ends with the whole sum. Otherwise n_ranks + 1 bounds: the k-th member ends
  /// with the sum of [cuts[k], cuts[k + 1]), and the rest of its vector is what it was.
  std::vector<std::int64_t> cuts;
};

/// How a sum's pieces lie: what a library's calls differ by.
enum class SumForm : std::int64_t { whole = 1, equal_pieces, pieces };
SumForm form_of(const LibrarySum& sum);

/// Sums over a group by a library's own collectives, which add in an order of their own: the same
/// bits at another start with the same ranks, no more. One object for a rank and its group; all
/// ranks give it the same sums. It launches them by number, one after another, whatever the order
/// in which they are given: a communicator's collectives have one order on all ranks.
class LibrarySums {
 public:
  using Id = std::array<std::byte, 128>;
  virtual ~LibrarySums() = default;
  /// On one rank, for all.
  virtual Id make_id() = 0;
  virtual void begin(const Id& id) = 0;
  /// Never blocks; may come before begin(). The vector is ready, and all ranks have agreed on the
  /// sum: nothing compares what they give. `done` is called on the loop's thread when the device
  /// has the sum.
  virtual void put(LibrarySum sum, std::function<void()> done) = 0;
};

/// Of the messages about sums: the id, once, and what a rank is about to sum.
inline constexpr std::int64_t sums_id_bytes = std::tuple_size_v<LibrarySums::Id>;
inline constexpr std::int64_t announcement_bytes = 24;
/// Those that a rank sends before each sum: ceil(log2 n_ranks).
int n_announcements(int n_ranks);

/// Gives all members one id, and begins. Once a group, before or beside its sums.
Task<> begin_sums(Group& group, CollectiveId id, LibrarySums& sums);

/// Waits until every member has come to this sum, then has the library do it: its kernels never
/// wait for a rank that still computes. Members tell each other what they are about to sum. Throws
/// CommError showing both sides where two differ, before anything is launched.
Task<> sum_by_library(Group& group, LibrarySums& sums, CollectiveId id, LibrarySum sum);

}  // namespace llm
