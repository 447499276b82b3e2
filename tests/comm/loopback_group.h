#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "src/comm/collective.h"
#include "src/comm/loopback/loopback.h"
#include "tests/support/queue_poller.h"
#include "tests/support/values.h"

namespace llm {

/// All ranks of a group in this process: a network with deliveries drawn from a seed, and a compute
/// queue for each rank.
struct LoopbackGroup {
  LoopbackGroup(int n_ranks, std::uint64_t seed) : loop(options()), network(loop, n_ranks, seed) {
    std::vector<int> ranks;
    for (int r = 0; r < n_ranks; ++r) ranks.push_back(r);
    for (int r = 0; r < n_ranks; ++r) {
      groups.emplace_back(network.rank(r), ranks);
      pollers.emplace_back(loop, queues.emplace_back());
    }
  }
  static Loop::Options options() {
    Loop::Options options;
    options.stall_timeout_seconds = 10;
    return options;
  }
  Group& group(int rank) { return groups[static_cast<std::size_t>(rank)]; }
  Queue& queue(int rank) { return queues[static_cast<std::size_t>(rank)]; }

  Loop loop;
  LoopbackNetwork network;
  std::deque<Group> groups;
  std::deque<Queue> queues;
  std::deque<LoopQueue> pollers;
};

/// One rank's part in a collective: its plans and buffers.
struct Member {
  Member(Group& group_, Queue& queue_, CollectiveForm form, const std::vector<std::int64_t>& cuts,
         int tag)
      : group(group_),
        queue(queue_),
        shape{group_.index, group_.size(), cuts},
        reduce(reduce_scatter_plan(form, shape)),
        gather(all_gather_plan(form, shape)),
        id(tag, 1, tag),
        values(values_of(group_.index, cuts.back())),
        scratch(static_cast<std::size_t>(reduce.scratch_elements)) {}
  MutView vector() { return MutView(values.data(), {static_cast<std::int64_t>(values.size())}); }
  MutView scratch_view() {
    return MutView(scratch.data(), {static_cast<std::int64_t>(scratch.size())});
  }

  Group& group;
  Queue& queue;
  CollectiveShape shape;
  ReduceScatterPlan reduce;
  std::vector<GatherRound> gather;
  CollectiveId id;
  std::vector<float> values;
  std::vector<float> scratch;
};

}  // namespace llm
