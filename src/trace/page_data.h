#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "src/trace/step_figures.h"
#include "src/trace/timeline.h"

namespace llm {

/// What the page draws; src/trace/page/page.js reads it. Times are in ticks of `tick_ns` since the
/// first step's begin; columns of many numbers are base64 of little-endian arrays.
///   ranks[r].lanes   a row of slices each, without overlaps: name, kind, n, and columns begin,
///                    length (u32), name (u16), category (u8), key (i32)
///   messages         columns from, to (u16), from_lane, to_lane (u8), begin, end (u32)
///   steps            figures, path, and the range of each
nlohmann::ordered_json page_data(const Timeline& timeline, const std::vector<StepFigures>& steps);

}  // namespace llm
