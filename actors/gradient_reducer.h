#pragma once
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "schedules/buckets.h"
#include "schedules/collective.h"
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
///   receives  grads_ready(step * n_buckets + bucket)   from the stage, once a step
///   sends     reduced(step * n_buckets + bucket)       to the optimizer
///   holds     scratch for one bucket's receives
class GradientReducer {
 public:
  struct Plan {
    int lane = 0;
    int n_lanes = 1;
    int first_tag = 0;  ///< bucket b's messages have tag first_tag + b % n_tags
    int n_tags = 1;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
  };
  struct Outbox {
    Port<Ready> reduced;
  };

  GradientReducer(Loop& loop, Queue& queue, Plan plan, Group& group,
                  const std::vector<Bucket>& buckets, MutView flat_gradients, Outbox out);

  Inbox<Ready>& grads_ready() { return grads_ready_; }
  Task<> run();

 private:
  /// One bucket's sums, decided once: the same every step.
  struct Sums {
    std::int64_t bucket;
    MutView vector;
    ReduceScatterPlan scatter;
    std::vector<GatherRound> gather;
  };

  Queue& queue_;
  const Plan plan_;
  Group& group_;
  const std::int64_t n_buckets_;
  const Outbox out_;
  Inbox<Ready> grads_ready_;
  std::vector<Sums> sums_;
  Storage scratch_;
};

/// A rank's place in its group.
struct GroupPlace {
  int rank;
  int n_ranks;
};

/// Bytes of the scratch of one lane's reducer for `buckets`: for --plan.
std::int64_t reducer_scratch_bytes(const std::vector<Bucket>& buckets, GroupPlace place,
                                   int n_lanes, int lane);

}  // namespace llm
