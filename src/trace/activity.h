#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/trace/timeline.h"

namespace llm {

/// Shorter pauses between two pieces of work are the loop's own: nobody waited.
inline constexpr std::int64_t pause_ns = 50'000;

struct Span {
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

/// A time in which a rank's loop worked, and at what. Those of a rank do not overlap.
struct Busy {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  int row;  ///< the actor whose work it is: the stage for ops of its actions; otherwise a queue
  std::uint16_t name;
  bool is_model;  ///< an op of the compute queue, or an action
};

/// Where a message was sent from.
struct Sent {
  std::size_t rank;
  int row;
  std::int64_t at_ns;
};
using Messages = std::unordered_map<std::uint64_t, Sent>;
Messages messages_of(const Timeline& timeline);

/// What let a rank go on after a pause: the wait that nobody of the rank ended, or the first that
/// is known, and the message that did.
struct Cause {
  const TimelineSlice* wait = nullptr;
  const TimelineFlow* arrival = nullptr;  ///< nullptr: no message
};

/// What one rank's loop did, and why it went on.
class Activity {
 public:
  Activity(const Timeline& timeline, std::size_t rank);

  const std::vector<Busy>& busy() const { return busy_; }
  /// The stage's actions, without validation, by begin.
  const std::vector<const TimelineSlice*>& actions() const { return actions_; }
  /// The last work that began before `at_ns`; nullptr: none.
  const Busy* last_before(std::int64_t at_ns) const;
  /// Of a pause that began at `begin_ns` and ended at `end_ns` for whatever came then; with `row`,
  /// for what that actor did. nullptr where no wait ended in it.
  Cause cause(std::optional<int> row, std::int64_t begin_ns, std::int64_t end_ns) const;
  /// The steps by their number.
  const std::map<std::int64_t, const TimelineSlice*>& steps() const { return steps_; }

 private:
  using Slices = std::vector<const TimelineSlice*>;
  void add_busy(const RankTimeline& rank);
  const TimelineSlice* last_ended(const Slices& waits, std::int64_t at_ns) const;

  std::vector<Busy> busy_;
  Slices actions_;
  Slices all_actions_;
  std::map<std::int64_t, const TimelineSlice*> steps_;
  Slices waits_;  // by end
  std::map<int, Slices> waits_of_;
  std::map<int, std::vector<const TimelineFlow*>> arrivals_of_;  // by time
};

}  // namespace llm
