#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "src/comm/transport.h"

namespace llm {

/// All ranks in one process, on one loop: the same actors as over MPI, with messages delivered in
/// an order drawn from `seed`. One (sender, receiver, tag) stays in order, everything else is
/// shuffled; a poll delivers some of what could be delivered, so that late messages are common.
class LoopbackNetwork {
 public:
  LoopbackNetwork(Loop& loop, int n_ranks, std::uint64_t seed);
  ~LoopbackNetwork();
  Transport& rank(int r);
  int n_ranks() const { return static_cast<int>(endpoints_.size()); }
  std::int64_t n_delivered() const { return n_delivered_; }

 private:
  class Endpoint;
  struct Lane;
  struct Sent {
    Header header;
    View tensor;
    Event* sent;
  };
  struct Posted {
    Header expected;
    MutView tensor;
    Event* received;
  };
  struct Control {
    ControlHeader header;
    std::vector<std::byte> payload;
  };
  using LaneKey = std::tuple<int, int, int>;  // sender, receiver, tag (control: n_tags)

  bool poll();
  bool deliver(const LaneKey& key, Lane& lane);
  std::uint64_t random();

  Loop& loop_;
  std::uint64_t seed_;
  std::uint64_t n_draws_ = 0;
  std::int64_t n_delivered_ = 0;
  std::map<LaneKey, Lane> lanes_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace llm
