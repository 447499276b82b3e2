#include "src/trace/activity.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace llm {
namespace {

// An arrival is noted just before the wait that it ends; a rank may be off its core in between.
constexpr std::int64_t arrival_before_ns = 50'000;
constexpr int chain_max = 64;
constexpr std::int64_t rounding_ns = 10;  // of times in files

bool ends_before(const TimelineSlice* a, const TimelineSlice* b) {
  return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a < b;  // both of one vector
}

}  // namespace

Messages messages_of(const Timeline& timeline) {
  Messages messages;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    for (const TimelineFlow& flow : timeline.ranks[rank].flows) {
      if (flow.begins) messages.emplace(flow.id, Sent{rank, flow.row, flow.at_ns});
    }
  }
  return messages;
}

Activity::Activity(const Timeline& timeline, std::size_t rank_index) {
  const RankTimeline& rank = timeline.ranks[rank_index];
  for (const TimelineSlice& slice : rank.slices) {
    if (slice.kind == SliceKind::wait) waits_.push_back(&slice);
    if (slice.kind == SliceKind::step) steps_.emplace(slice.key, &slice);
    if (slice.kind != SliceKind::compute) continue;
    all_actions_.push_back(&slice);
    if (timeline.name(slice.name) != "V") actions_.push_back(&slice);
  }
  std::sort(waits_.begin(), waits_.end(), ends_before);
  for (const TimelineSlice* wait : waits_) waits_of_[wait->row].push_back(wait);
  for (const TimelineFlow& flow : rank.flows) {
    if (!flow.begins) arrivals_of_[flow.row].push_back(&flow);
  }
  add_busy(rank);
}

void Activity::add_busy(const RankTimeline& rank) {
  std::set<int> compute_rows;  // the queue's own, and those of its pairs' two sides
  for (const TimelineRow& row : rank.rows) {
    if (row.name.starts_with("compute queue")) compute_rows.insert(row.id);
  }
  const bool has_ops = std::any_of(rank.slices.begin(), rank.slices.end(),
                                   [](const auto& s) { return s.kind == SliceKind::op; });
  std::size_t action = 0;
  std::int64_t end_ns = INT64_MIN;
  for (const TimelineSlice& slice : rank.slices) {
    const bool is_action = slice.kind == SliceKind::compute && !has_ops;
    if (slice.kind != SliceKind::op && slice.kind != SliceKind::actor && !is_action) continue;
    const std::int64_t begin_ns = std::max(slice.begin_ns, end_ns);
    if (slice.end_ns <= begin_ns) continue;
    end_ns = slice.end_ns;
    const bool is_of_action = slice.kind == SliceKind::op && compute_rows.contains(slice.row);
    if (!is_of_action) {
      busy_.push_back({begin_ns, end_ns, slice.row, slice.name, is_action});
      continue;
    }
    // Tiles of one op may belong to two actions.
    for (std::int64_t at_ns = begin_ns; at_ns < end_ns;) {
      while (action < all_actions_.size() && all_actions_[action]->end_ns <= at_ns) ++action;
      const TimelineSlice* const next =
          action < all_actions_.size() ? all_actions_[action] : nullptr;
      const bool is_in = next != nullptr && next->begin_ns <= at_ns;
      const std::int64_t to_ns =
          next == nullptr ? end_ns : std::min(end_ns, is_in ? next->end_ns : next->begin_ns);
      const TimelineSlice& what = is_in ? *next : slice;
      busy_.push_back({at_ns, to_ns, what.row, what.name, true});
      at_ns = to_ns;
    }
  }
}

const Busy* Activity::last_before(std::int64_t at_ns) const {
  const auto after = std::lower_bound(busy_.begin(), busy_.end(), at_ns,
                                      [](const Busy& b, std::int64_t t) { return b.begin_ns < t; });
  return after == busy_.begin() ? nullptr : &*std::prev(after);
}

const TimelineSlice* Activity::last_ended(const Slices& waits, std::int64_t at_ns) const {
  const auto after =
      std::upper_bound(waits.begin(), waits.end(), at_ns,
                       [](std::int64_t t, const TimelineSlice* wait) { return t < wait->end_ns; });
  return after == waits.begin() ? nullptr : *std::prev(after);
}

Cause Activity::cause(std::optional<int> row, std::int64_t begin_ns, std::int64_t end_ns) const {
  const auto last_of = [this](int of_row, std::int64_t at_ns) -> const TimelineSlice* {
    const auto found = waits_of_.find(of_row);
    return found == waits_of_.end() ? nullptr : last_ended(found->second, at_ns);
  };
  const TimelineSlice* wait = row ? last_of(*row, end_ns) : last_ended(waits_, end_ns);
  if (wait == nullptr || wait->end_ns <= begin_ns) return {};
  // Actors wake each other within a moment: the wait that began it is the one that counts.
  for (int n = 0; n < chain_max && wait->by >= 0; ++n) {
    const TimelineSlice* const before = last_of(wait->by, wait->end_ns);
    if (before == nullptr || before->end_ns <= begin_ns) return {wait, nullptr};
    wait = before;
  }
  Cause cause{wait, nullptr};
  const auto arrivals = arrivals_of_.find(wait->row);
  if (arrivals == arrivals_of_.end()) return cause;
  const auto after =
      std::upper_bound(arrivals->second.begin(), arrivals->second.end(), wait->end_ns + rounding_ns,
                       [](std::int64_t t, const TimelineFlow* flow) { return t < flow->at_ns; });
  if (after == arrivals->second.begin()) return cause;
  const TimelineFlow* const arrival = *std::prev(after);
  const std::int64_t earliest_ns = std::max(wait->begin_ns, wait->end_ns - arrival_before_ns);
  if (arrival->at_ns >= earliest_ns) cause.arrival = arrival;
  return cause;
}

}  // namespace llm
