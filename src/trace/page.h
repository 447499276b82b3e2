#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "src/trace/step_figures.h"
#include "src/trace/timeline.h"

namespace llm {

/// Losses by step, as the metrics files of a run have them.
struct LossCurve {
  std::vector<std::pair<std::int64_t, double>> train;
  std::vector<std::pair<std::int64_t, double>> validation;
};
/// Reads metrics.jsonl, and those of resumed starts, of a run's folder; empty where it has none.
/// Throws DataError for a line that is none of theirs.
LossCurve read_losses(const std::filesystem::path& run_dir);

/// One HTML page that needs nothing else: timeline, steps, critical paths and losses. Throws
/// DataError where the steps hold more slices than a page can show.
std::string page_html(const Timeline& timeline, const std::vector<StepFigures>& steps,
                      const LossCurve& losses);

}  // namespace llm
