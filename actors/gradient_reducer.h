#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages.h"
#include "schedules/buckets.h"
#include "schedules/collective.h"
#include "src/comm/collective.h"
#include "src/comm/library_sums.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// Sums the gradients of its buckets over the data-parallel group, each as soon as it is complete,
/// while the backward of earlier layers goes on. One lane holds one bucket in flight; more lanes
/// are more reducers, lane l taking the buckets l, l + n_lanes, ...
///
/// Where the group's ranks share a machine's memory, each adds up its piece of all ranks' gradients
/// where they lie, and messages say only when; elsewhere the pieces are the messages. Same bits.
/// Under ZeRO a rank ends with the sum of the piece that it owns. A bucket that is the rank's own
/// is its sum already. Where a library sums, in an order of its own, all lanes give it their
/// buckets.
///
///   receives  grads_ready(step * n_buckets + bucket)   from the stage, once a step
///   sends     reduced(step * n_buckets + bucket)       to the optimizer
///   holds     scratch for one bucket's receives, or the mapped gradients of the other ranks, or
///             nothing where a library sums
class GradientReducer {
 public:
  struct Plan {
    int lane = 0;
    int n_lanes = 1;
    int first_tag = 0;  ///< bucket b's messages have tag first_tag + b % n_tags
    int n_tags = 1;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
    /// Of `flat_gradients`, where all ranks of the group can map each other's; on all or on none.
    std::optional<SharedHandle> shared = {};
    /// ZeRO: the bounds of each bucket's pieces (shard_cuts); each rank keeps the sum of its own.
    /// Empty: every rank has all sums.
    std::vector<std::vector<std::int64_t>> piece_cuts = {};
  };
  struct Outbox {
    Port<Ready> reduced;
  };

  /// `sums`, of all lanes, may be nullptr: the plans are carried out.
  GradientReducer(Loop& loop, Queue& queue, Plan plan, Group& group,
                  const std::vector<Bucket>& buckets, MutView flat_gradients, Outbox out,
                  LibrarySums* sums = nullptr);

  Inbox<Ready>& grads_ready() { return grads_ready_; }
  Task<> run();

 private:
  /// One bucket's sums, decided once: the same every step.
  struct Sums {
    std::int64_t bucket;
    Range flat;
    bool is_own = false;
    ReduceScatterPlan scatter;
    std::vector<GatherRound> gather;
    InPlacePlan in_place;
    std::int64_t number = 0;  ///< of the step's sums
  };
  /// Before the first step; with the tag of the lane's first bucket, whose messages follow.
  CollectiveId first_id() const {
    return {plan_.first_tag + plan_.lane, plan_.first_step, plan_.lane};
  }
  Task<> map_peers();
  Task<> sum(const Sums& sums, CollectiveId id);
  LibrarySum library_sum(const Sums& sums, std::int64_t step) const;

  Queue& queue_;
  const Plan plan_;
  Group& group_;
  const std::int64_t n_buckets_;
  const MutView gradients_;
  const Outbox out_;
  Inbox<Ready> grads_ready_;
  LibrarySums* const library_;
  std::int64_t n_sums_ = 0;  // of a step, on all lanes
  std::vector<Sums> sums_;
  Storage scratch_;      // without shared memory
  GroupVectors shared_;  // with it
};

/// A rank's place in its group.
struct GroupPlace {
  int rank;
  int n_ranks;
};

/// Bytes of the scratch of one lane's reducer for `buckets`, without shared memory: for --plan.
std::int64_t reducer_scratch_bytes(const std::vector<Bucket>& buckets, GroupPlace place,
                                   int n_lanes, int lane,
                                   const std::vector<std::vector<std::int64_t>>& piece_cuts = {});

}  // namespace llm
