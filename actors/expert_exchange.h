#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "actors/queued_calls.h"
#include "src/comm/transport.h"
#include "src/model/row_exchange.h"
#include "src/rt/task.h"

namespace llm {

/// Carries out what ranks with different experts of a mixture send each other. Every member sends
/// every other one a message in each call, an empty one where no row goes that way, so that nobody
/// waits for what does not come.
///
///   sends and receives  begins and rows   to and from the group's ranks
class ExpertExchange : public RowExchange, public QueuedCalls {
 public:
  /// `copies` runs the copies of what stays on the rank.
  ExpertExchange(Group& group, Queue& copies, int tag);

  int size() const override { return group_.size(); }
  int rank() const override { return group_.index; }
  void share_begins(Queue& queue, View begins, MutView bounds) override;
  void to_experts(Queue& queue, View begins, View bounds, View mine, MutView theirs) override;
  void from_experts(Queue& queue, View begins, View bounds, View theirs, MutView mine) override;

 private:
  enum class Kind : std::uint8_t { begins, to_experts, from_experts };
  struct Call {
    Kind kind;
    View begins;
    View bounds;
    View from;
    MutView into;
  };
  /// What goes to each member and comes from it; what stays is both.
  struct Parts {
    std::vector<View> sends;
    std::vector<MutView> receives;
  };
  void enqueue(Queue& queue, const Call& call);
  Task<> carry_out(std::int64_t key) override;
  void read_back(View x, std::vector<std::int32_t>& into);
  Parts parts_of(const Call& call) const;
  Parts parts_of_begins(const Call& call) const;
  Parts parts_of_rows(const Call& call) const;

  Group& group_;
  Queue& copies_;
  const int tag_;
  std::map<std::int64_t, Call> calls_;  // reached and not begun
};

}  // namespace llm
