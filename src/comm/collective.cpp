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

/// The transfers of one round, in flight. Empty ranges carry nothing and are not sent.
struct InFlight {
  explicit InFlight(Group& g) : group(g) {}
  void receive(const Transfer& from, const CollectiveId& id, const Header& header, MutView into) {
    if (from.range.empty()) return;
    const int rank = group.rank_of(from.peer);
    const WaitName& name = names.emplace_back("piece", "rank " + std::to_string(rank));
    Event& event = received.emplace_back(group.transport.loop(), name, id.index);
    group.transport.receive(rank, id.tag, header, into, event);
  }
  void send(const Transfer& to, const CollectiveId& id, const Header& header, View tensor) {
    if (to.range.empty()) return;
    const int rank = group.rank_of(to.peer);
    const WaitName& name = names.emplace_back("sent piece", "rank " + std::to_string(rank));
    Event& event = sent.emplace_back(group.transport.loop(), name, id.index);
    group.transport.send(rank, id.tag, header, tensor, event);
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

}  // namespace

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
