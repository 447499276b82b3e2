#pragma once
#include <cstdint>

#include "schedules/collective.h"
#include "src/comm/transport.h"
#include "src/rt/task.h"
#include "tensor/queue.h"
#include "tensor/shared_memory.h"
#include "tensor/view.h"

namespace llm {

/// What a collective's messages are called: all ranks of the group give the same. Collectives that
/// may run at the same time have different tags.
struct CollectiveId {
  CollectiveId(int tag_, std::int64_t step_, std::int32_t index_)
      : tag(tag_), step(step_), index(index_) {}
  int tag;
  std::int64_t step;
  std::int32_t index;  ///< the bucket
};

/// Carries `plan` out: afterwards `vector` holds the sum over the group in plan.owned; elsewhere it
/// is what the rounds left there.
///   vector   (n) f32, all of the vector that the plan cuts
///   scratch  (>= plan.scratch_elements) f32
///   queue    runs the additions; one of its own, so that they do not wait behind a backward
/// Suspends, never blocks. Plan, group, queue and buffers outlive the task.
Task<> reduce_scatter(Group& group, Queue& queue, const ReduceScatterPlan& plan, CollectiveId id,
                      MutView vector, MutView scratch);

/// The vectors of a group whose ranks see each other's memory, by member; this rank's is its own.
class GroupVectors {
 public:
  GroupVectors() = default;
  /// Maps the memory of the others, which hold f32 and are as long as `own`. Throws FileError.
  GroupVectors(int member, MutView own, const std::vector<SharedHandle>& handles);
  MutView of(int member, Range range) const {
    return part(vectors_[static_cast<std::size_t>(member)], range.begin, {range.size()});
  }

 private:
  std::vector<SharedMemory> mapped_;
  std::vector<MutView> vectors_;
};

/// Gives every member's handle to all, by member. Once, before the sums in place.
Task<> exchange_handles(Group& group, CollectiveId id, std::vector<SharedHandle>& handles);

/// Whether every member ends with all sums, or with those of its own piece.
enum class SumGoes : std::uint8_t { to_all, to_its_rank };

/// Carries `plan` out on elements `whole` of the vectors: afterwards they hold the sum over the
/// group, on every rank or each piece on its own. Nobody writes to them from the call to the end on
/// any rank but this. The same bits as a reduce-scatter and an all-gather.
Task<> sum_in_place(Group& group, Queue& queue, const InPlacePlan& plan, CollectiveId id,
                    const GroupVectors& vectors, Range whole, SumGoes goes = SumGoes::to_all);

/// Fills `vector` (n elements of any dtype) on every rank from the pieces of all, in place.
Task<> all_gather(Group& group, const std::vector<GatherRound>& plan, CollectiveId id,
                  MutView vector);

/// Fills `vector` on every rank from the root's, by broadcast_plan's rounds.
Task<> broadcast(Group& group, const std::vector<GatherRound>& plan, CollectiveId id,
                 MutView vector);

}  // namespace llm
