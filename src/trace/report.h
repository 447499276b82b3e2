#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "src/trace/step_figures.h"
#include "src/trace/timeline.h"

namespace llm {

/// For a terminal: a line a step, where the ranks' time went on average, what the critical paths
/// of all steps consist of, and that of `step` in order (0: of the step of median length).
std::string report_text(const Timeline& timeline, const std::vector<StepFigures>& steps,
                        std::int64_t step);

/// The same for programs, as one JSON object; times in ms.
std::string report_json(const Timeline& timeline, const std::vector<StepFigures>& steps);

/// The step of median length, or the one numbered `step`. Throws UsageError where it is not there.
const StepFigures& shown_step(const std::vector<StepFigures>& steps, std::int64_t step);

}  // namespace llm
