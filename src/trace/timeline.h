#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedules/grid.h"
#include "schedules/pipeline.h"

namespace llm {

/// What a slice shows: a stage's action, tiles of an op, a wait of an actor, an actor that kept the
/// loop, a step, or anything else (a sum, a gather: made of the others).
enum class SliceKind : std::uint8_t { compute, op, wait, actor, step, other };

struct TimelineSlice {
  int row = 0;
  int by =
      -1;  ///< of a wait: the actor of this rank that ended it; -1: a message, a queue, a timer
  SliceKind kind = SliceKind::other;
  std::uint16_t category = 0;  ///< category, name and peer: indices into Timeline::names
  std::uint16_t name = 0;
  std::uint16_t peer = 0;
  std::int64_t key = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// One end of a message.
struct TimelineFlow {
  std::uint64_t id = 0;
  int row = 0;
  bool begins = false;
  bool is_control = false;
  std::int64_t at_ns = 0;
};

struct TimelineRow {
  int id = 0;
  std::string name;
};

struct RankTimeline {
  double clock_uncertainty_us = 0;
  std::vector<TimelineRow> rows;
  std::vector<TimelineSlice> slices;  ///< by begin, longer ones first
  std::vector<TimelineFlow> flows;    ///< by time
  const std::string& row_name(int id) const;
};

/// All ranks of one run, on one clock.
struct Timeline {
  std::vector<std::string> names = {""};  ///< of categories, slices and peers
  std::vector<RankTimeline> ranks;
  std::string run;  ///< differs between two runs
  std::string layout;
  Grid grid;
  Pipeline pipeline;  ///< of one flush; without schedules where it is not known
  int n_flushes = 1;  ///< a step
  std::string run_dir;

  std::uint16_t intern(const std::string& name);
  const std::string& name(std::uint16_t index) const { return names[index]; }
  /// Clocks of two ranks may be apart by the sum of theirs.
  double clock_uncertainty_us() const;
};

}  // namespace llm
