#pragma once
#include <string>

#include "schedules/simulation.h"
#include "src/train/settings.h"

namespace llm {

/// What the actions of each stage cost by their floating-point operations (layer_costs); 1 is a
/// forward of the mean stage. A forward is a third of its layers' operations. The head's are all in
/// the backward, or its input half, since its loss is computed there.
PipelineCosts pipeline_costs(const Settings& settings);

/// One line where ranks would wait for more than a fifth of the time, with the least
/// distributed.pp_n_microbatches that brings it below, or what else helps; otherwise empty.
std::string bubble_warning(const Settings& settings);

/// One line where a schedule of pairs has none, or they hide nothing; otherwise empty.
std::string pairs_warning(const Settings& settings);

/// The stages, their ranks, layers, parameters and operations; the bytes of each rank of the last
/// pipeline; and a flush on the virtual clock, drawn where that fits into 120 columns.
std::string pipeline_report(const Settings& settings);

}  // namespace llm
