#include "tensor/alternation.h"

namespace llm {

Alternation::Alternation(Queue& queue, std::array<const char*, 2> names)
    : queue_(queue),
      lanes_{Lane{Queue(queue.device(), queue.pool(), names[0])},
             Lane{Queue(queue.device(), queue.pool(), names[1])}} {
  for (Lane& lane : lanes_) {
    if (queue.uses_graphs()) lane.queue.use_graphs(1);  // for keys; `queue` makes the graphs
  }
}

bool Alternation::move_turn(Lane& lane) {
  const std::size_t n_before = lane.queue.n_ops();
  const bool waits = queue_.take_to_wait(lane.queue);
  lane.n_moved += n_before - lane.queue.n_ops();
  return waits;
}

void Alternation::take_turns() {
  while (move_turn(lanes_[turn_])) turn_ = 1 - turn_;
}

void Alternation::end_round() {
  take_turns();
  // Nothing is left in the lane whose turn it is.
  Lane& other = lanes_[1 - turn_];
  while (other.n_moved < other.n_put_before) move_turn(other);
  for (Lane& lane : lanes_) lane.n_put_before = lane.n_moved + lane.queue.n_ops();
}

void Alternation::finish() {
  take_turns();
  while (move_turn(lanes_[1 - turn_])) {
  }
  for (Lane& lane : lanes_) {
    lane.n_put_before = 0;
    lane.n_moved = 0;
  }
  turn_ = 0;
}

}  // namespace llm
