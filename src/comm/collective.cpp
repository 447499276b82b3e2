#include "src/comm/collective.h"

#include <deque>
#include <string>

#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

const WaitName wait_added{"collective sum"};

MutView range_of(const MutView& vector, Range range) {
  return part(vector, range.begin, {range.size()});
}

/// Messages of one round, in flight.
struct InFlight {
  explicit InFlight(Group& g) : group(g) {}
  void receive(int member, const CollectiveId& id, const Header& header, MutView into) {
    const int rank = group.rank_of(member);
    const WaitName& name = names.emplace_back("piece", "rank " + std::to_string(rank));
    Event& event = received.emplace_back(group.transport.loop(), name, id.index);
    group.transport.receive(rank, id.tag, header, into, event);
  }
  void send(int member, const CollectiveId& id, const Header& header, View tensor) {
    const int rank = group.rank_of(member);
    const WaitName& name = names.emplace_back("sent piece", "rank " + std::to_string(rank));
    Event& event = sent.emplace_back(group.transport.loop(), name, id.index);
    group.transport.send(rank, id.tag, header, tensor, event);
  }
  /// Empty ranges carry nothing and are not sent.
  void receive(const Transfer& from, const CollectiveId& id, const Header& header, MutView into) {
    if (!from.range.empty()) receive(from.peer, id, header, into);
  }
  void send(const Transfer& to, const CollectiveId& id, const Header& header, View tensor) {
    if (!to.range.empty()) send(to.peer, id, header, tensor);
  }
  Group& group;
  std::deque<WaitName> names;  // deques: what is pointed at does not move
  std::deque<Event> received;
  std::deque<Event> sent;
};

void enqueue_additions(Queue& queue, const ReduceRound& round, const MutView& vector,
                       const MutView& scratch) {
  const auto operand = [&](int place) {
    return place == own_operand ? range_of(vector, round.kept)
                                : part(scratch, place * round.kept.size(), {round.kept.size()});
  };
  for (const Addition& addition : round.additions) {
    add(queue, operand(addition.from), operand(addition.into));
  }
}

Task<> gather(Group& group, const std::vector<GatherRound>& plan, MessageKind kind, CollectiveId id,
              MutView vector) {
  std::deque<InFlight> rounds;
  int n_rounds = 0;
  for (const GatherRound& round : plan) {
    const Header header(kind, id.step, id.index, n_rounds++);
    InFlight& flight = rounds.emplace_back(group);
    for (const Transfer& from : round.receives) {
      flight.receive(from, id, header, range_of(vector, from.range));
    }
    for (const Transfer& to : round.sends) flight.send(to, id, header, range_of(vector, to.range));
    for (Event& event : flight.received) co_await event;
  }
  for (InFlight& flight : rounds) {
    for (Event& event : flight.sent) co_await event;
  }
}

/// Tells every other member something and hears the same from them.
Task<> tell_all(Group& group, MessageKind kind, CollectiveId id) {
  const Header header(kind, id.step, id.index, 0);
  const View nothing(&id.tag, {0});
  std::int32_t nowhere = 0;
  InFlight flight(group);
  for (int i = 1; i < group.size(); ++i) {
    const int member = (group.index + i) % group.size();
    flight.receive(member, id, header, MutView(&nowhere, {0}));
    flight.send(member, id, header, nothing);
  }
  for (Event& event : flight.received) co_await event;
  for (Event& event : flight.sent) co_await event;
}

/// A segment's sum in place, then its copies, while it is in the core's cache.
void enqueue_segment(Queue& queue, const InPlacePlan& plan, const Group& group,
                     const GroupVectors& vectors, Range segment) {
  for (const Addition& addition : plan.additions) {
    add(queue, vectors.of(addition.from, segment), vectors.of(addition.into, segment));
  }
  for (int member = 0; member < group.size(); ++member) {
    if (member == group.index) continue;
    copy(queue, vectors.of(group.index, segment), vectors.of(member, segment));
  }
}

}  // namespace

GroupVectors::GroupVectors(int member, MutView own, const std::vector<SharedHandle>& handles) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (static_cast<int>(i) == member) {
      vectors_.push_back(own);
      continue;
    }
    const std::int64_t n_bytes = handles[i].n_bytes;
    CHECK_CONTRACT(n_bytes == own.n_bytes(), "the vectors of a group have one length");
    void* const bytes = mapped_.emplace_back(handles[i]).bytes();
    vectors_.emplace_back(bytes, Dtype::f32, Shape({n_bytes / 4}));
  }
}

Task<> exchange_handles(Group& group, CollectiveId id, std::vector<SharedHandle>& handles) {
  const auto bytes_of = [&handles](int member) {
    return MutView(reinterpret_cast<std::uint8_t*>(&handles[static_cast<std::size_t>(member)]),
                   {sizeof(SharedHandle)});
  };
  const Header header(MessageKind::shared_memory, id.step, id.index, 0);
  InFlight flight(group);
  for (int member = 0; member < group.size(); ++member) {
    if (member == group.index) continue;
    flight.receive(member, id, header, bytes_of(member));
    flight.send(member, id, header, bytes_of(group.index));
  }
  for (Event& event : flight.received) co_await event;
  for (Event& event : flight.sent) co_await event;
}

Task<> sum_in_place(Group& group, Queue& queue, const InPlacePlan& plan, CollectiveId id,
                    const GroupVectors& vectors, Range whole) {
  if (group.size() == 1) co_return;
  co_await tell_all(group, MessageKind::vector_ready, id);
  for (const Range& segment : plan.segments) {
    const Range in_vector{whole.begin + segment.begin, whole.begin + segment.end};
    enqueue_segment(queue, plan, group, vectors, in_vector);
  }
  if (!plan.segments.empty()) {
    Event added(group.transport.loop(), wait_added, id.index);
    queue.notify([&added] { added.set(); });
    co_await added;
  }
  co_await tell_all(group, MessageKind::piece_summed, id);
}

Task<> reduce_scatter(Group& group, Queue& queue, const ReduceScatterPlan& plan, CollectiveId id,
                      MutView vector, MutView scratch) {
  int n_rounds = 0;
  for (const ReduceRound& round : plan.rounds) {
    const Header header(MessageKind::partial_sum, id.step, id.index, n_rounds++);
    InFlight flight(group);
    for (std::size_t i = 0; i < round.receives.size(); ++i) {
      const auto begin = static_cast<std::int64_t>(i) * round.kept.size();
      flight.receive(round.receives[i], id, header, part(scratch, begin, {round.kept.size()}));
    }
    for (const Transfer& to : round.sends) flight.send(to, id, header, range_of(vector, to.range));
    for (Event& event : flight.received) co_await event;
    if (!round.kept.empty()) {
      enqueue_additions(queue, round, vector, scratch);
      Event added(group.transport.loop(), wait_added, id.index);
      queue.notify([&added] { added.set(); });
      co_await added;
    }
    for (Event& event : flight.sent) co_await event;
  }
}

Task<> all_gather(Group& group, const std::vector<GatherRound>& plan, CollectiveId id,
                  MutView vector) {
  return gather(group, plan, MessageKind::gathered, id, vector);
}

Task<> broadcast(Group& group, const std::vector<GatherRound>& plan, CollectiveId id,
                 MutView vector) {
  return gather(group, plan, MessageKind::broadcast, id, vector);
}

}  // namespace llm
