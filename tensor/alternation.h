#pragma once
#include <array>
#include <cstddef>

#include "tensor/queue.h"

namespace llm {

/// Two lanes of work that take turns on one queue: from the first lane to where it waits, then from
/// the second to where it waits, and so on, each going on behind its wait when its turn comes. So
/// one computes while the other waits, in an order that follows from what is put in alone.
class Alternation {
 public:
  /// Nothing runs in the lanes: end_round and finish move their work to the end of `queue`. `names`
  /// are literals.
  Alternation(Queue& queue, std::array<const char*, 2> names);
  /// 0 or 1.
  Queue& lane(std::size_t i) { return lanes_[i].queue; }
  /// Moves what has its turn, and everything that was put in before the last call: work is held
  /// back for a round at most, and so is what it reads.
  void end_round();
  /// Moves the rest. The first lane begins again.
  void finish();

 private:
  struct Lane {
    Queue queue;
    std::size_t n_put_before = 0;  ///< ops until the last end_round
    std::size_t n_moved = 0;
  };
  /// Moves the lane's ops from its wait to before the next one; whether there is a next.
  bool move_turn(Lane& lane);
  /// Until the lane whose turn it is has nothing left and does not wait.
  void take_turns();

  Queue& queue_;
  std::array<Lane, 2> lanes_;
  std::size_t turn_ = 0;
};

}  // namespace llm
