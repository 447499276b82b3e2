#pragma once
#include <cstdint>

#include "schedules/collective.h"
#include "src/comm/transport.h"
#include "src/rt/task.h"
#include "tensor/queue.h"
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

/// Fills `vector` (n elements of any dtype) on every rank from the pieces of all, in place.
Task<> all_gather(Group& group, const std::vector<GatherRound>& plan, CollectiveId id,
                  MutView vector);

/// Fills `vector` on every rank from the root's, by broadcast_plan's rounds.
Task<> broadcast(Group& group, const std::vector<GatherRound>& plan, CollectiveId id,
                 MutView vector);

}  // namespace llm
