#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/trace/activity.h"
#include "src/trace/critical_path.h"
#include "src/trace/timeline.h"

namespace llm {

/// Where a rank's time of one step went: wall_ns is the sum of the next six.
struct RankFigures {
  std::int64_t wall_ns = 0;
  std::int64_t model_ns = 0;   ///< ops of the compute queue
  std::int64_t sums_ns = 0;    ///< ops of other queues: additions of gradients, squares
  std::int64_t actors_ns = 0;  ///< actors that kept the loop
  std::map<std::string, std::int64_t> exposed_ns;  ///< nothing to do but to wait, by message
  std::int64_t own_waits_ns = 0;                   ///< the same for no message: disk, timers
  std::int64_t other_ns = 0;                       ///< between two pieces of work; not recorded
  std::int64_t in_flight_ns = 0;                   ///< a message to this rank was on its way
  std::int64_t overlapped_ns = 0;                  ///< of these: the rank worked meanwhile

  std::int64_t exposed_all_ns() const;
};

/// A step's forwards and backwards of one pipeline, from the first begin to the last end.
struct FlushFigures {
  std::vector<int> ranks;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  double bubble = 0;  ///< the part in which a rank is in no action, mean over ranks
  /// The same schedule on the virtual clock, with the mean costs of this step's actions and
  /// messages that take no time; 0: the schedule is not known.
  double planned_bubble = 0;
  std::int64_t planned_ns = 0;
  struct Planned {
    int rank;
    std::string name;
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };
  std::vector<Planned> planned;
};

struct StepFigures {
  std::int64_t step = 0;      ///< its number, from 1; 0 where the trace has no steps
  std::int64_t begin_ns = 0;  ///< the last rank's end of the step before
  std::int64_t end_ns = 0;
  std::vector<RankFigures> ranks;
  std::vector<FlushFigures> flushes;  ///< where there are pipelines
  std::size_t slowest = 0;            ///< the rank that computed longest
  std::int64_t beyond_median_ns = 0;  ///< by so much more than the median
  std::vector<PathPart> path;

  std::int64_t wall_ns() const { return end_ns - begin_ns; }
  double bubble() const;  ///< mean over pipelines; 0: none
  double planned_bubble() const;
};

/// The steps `first` to `last` that all ranks have. Where no rank has any, all is one step.
std::vector<StepFigures> step_figures(const Timeline& timeline, std::int64_t first = 0,
                                      std::int64_t last = INT64_MAX);

}  // namespace llm
