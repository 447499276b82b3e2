#pragma once
#include <vector>

#include "src/trace/activity.h"
#include "src/trace/step_figures.h"
#include "src/trace/timeline.h"

namespace llm {

/// Those of a step's pipelines, in order of their first ranks; empty where there are none. `steps`
/// says when each rank's step was.
std::vector<FlushFigures> flush_figures(const Timeline& timeline,
                                        const std::vector<Activity>& activities,
                                        const std::vector<Span>& steps);

}  // namespace llm
