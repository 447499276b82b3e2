#include "tests/trace/timelines.h"

#include <algorithm>
#include <tuple>

namespace llm {

TimelineMaker::TimelineMaker(int n_ranks) {
  timeline_.ranks.resize(static_cast<std::size_t>(n_ranks));
  timeline_.grid.dp = n_ranks;
  for (RankTimeline& rank : timeline_.ranks) {
    rank.rows = {{0, "stage"}, {1, "receiver"}, {2, "sender"}, {100, "compute queue"}};
  }
}

void TimelineMaker::add(int rank, SliceKind kind, int row, const std::string& name,
                        std::int64_t key, When when) {
  TimelineSlice slice;
  slice.row = row;
  slice.kind = kind;
  slice.name = timeline_.intern(name);
  slice.key = key;
  slice.begin_ns = when.begin_us * 1000;
  slice.end_ns = when.end_us * 1000;
  timeline_.ranks[static_cast<std::size_t>(rank)].slices.push_back(slice);
}

void TimelineMaker::action(int rank, const std::string& name, std::int64_t key, When when) {
  add(rank, SliceKind::compute, 0, name, key, when);
  op(rank, "linear", when);
}

void TimelineMaker::op(int rank, const std::string& name, When when) {
  add(rank, SliceKind::op, 100, name, 1, when);
}

void TimelineMaker::run(int rank, int row, When when) {
  add(rank, SliceKind::actor, row, "run", 0, when);
}

void TimelineMaker::step(int rank, std::int64_t step, When when) {
  add(rank, SliceKind::step, 1000, "step", step, when);
}

void TimelineMaker::wait(int rank, int row, const std::string& name, When when, int by) {
  add(rank, SliceKind::wait, row, name, 0, when);
  timeline_.ranks[static_cast<std::size_t>(rank)].slices.back().by = by;
}

void TimelineMaker::message(const Message& m) {
  const std::uint64_t id = next_id_++;
  timeline_.ranks[static_cast<std::size_t>(m.from)].flows.push_back({.id = id,
                                                                     .row = m.from_row,
                                                                     .begins = true,
                                                                     .is_control = false,
                                                                     .at_ns = m.sent_us * 1000});
  timeline_.ranks[static_cast<std::size_t>(m.to)].flows.push_back({.id = id,
                                                                   .row = m.to_row,
                                                                   .begins = false,
                                                                   .is_control = false,
                                                                   .at_ns = m.arrived_us * 1000});
}

void TimelineMaker::awaited(const Message& m, const std::string& name, std::int64_t since_us) {
  message(m);
  wait(m.to, m.to_row, name, {since_us, m.arrived_us});
  if (m.to_row != 0) wait(m.to, 0, name + " for the stage", {since_us, m.arrived_us}, m.to_row);
}

Timeline TimelineMaker::made() {
  for (RankTimeline& rank : timeline_.ranks) {
    std::sort(rank.slices.begin(), rank.slices.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.begin_ns, -a.end_ns, a.row) < std::tuple(b.begin_ns, -b.end_ns, b.row);
    });
    std::sort(rank.flows.begin(), rank.flows.end(),
              [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  }
  return timeline_;
}

}  // namespace llm
