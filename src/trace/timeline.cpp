#include "src/trace/timeline.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm {

const std::string& RankTimeline::row_name(int id) const {
  static const std::string none;
  const auto found =
      std::find_if(rows.begin(), rows.end(), [id](const TimelineRow& row) { return row.id == id; });
  return found == rows.end() ? none : found->name;
}

std::uint16_t Timeline::intern(const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    CHECK_CONTRACT(names.size() < 65535, "a timeline has a bounded set of names");
    names.push_back(name);
    return static_cast<std::uint16_t>(names.size() - 1);
  }
  return static_cast<std::uint16_t>(found - names.begin());
}

double Timeline::clock_uncertainty_us() const {
  std::vector<double> of_ranks = {0, 0};
  for (const RankTimeline& rank : ranks) of_ranks.push_back(rank.clock_uncertainty_us);
  std::sort(of_ranks.rbegin(), of_ranks.rend());
  return of_ranks[0] + of_ranks[1];
}

}  // namespace llm
