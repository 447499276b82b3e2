#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// How the ranks of a group send each other the rows of a mixture whose experts they share out.
/// Each call puts its work at the end of the queue and returns: what is enqueued after it sees the
/// result. Every rank of the group enqueues the same calls in the same order; how many rows go
/// where is read when they run, and may be none.
///   mine    rows by expert of all of the group: expert e has [begins[e], begins[e + 1]), in order,
///           member d has the d-th part of the experts
///   theirs  the rows that came for this rank's experts, by the member they are of, and as they lie
///           with it
/// Rows are (at most so many, C) of one dtype; what is beyond those that there are stays as it was.
class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  /// bounds (size, own experts + 1) i32 := each member's begins of this rank's experts.
  virtual void share_begins(Queue& queue, View begins, MutView bounds) = 0;
  /// Every member's rows, mine to their experts' ranks: theirs.
  virtual void to_experts(Queue& queue, View begins, View bounds, View mine, MutView theirs) = 0;
  /// And back.
  virtual void from_experts(Queue& queue, View begins, View bounds, View theirs, MutView mine) = 0;
};

}  // namespace llm
