#pragma once
#include <string>

#include "src/comm/mpi/mpi_session.h"
#include "src/comm/stall_monitor.h"
#include "src/train/settings.h"
#include "src/train/trainer.h"

namespace llm {

/// What the keys of a rank's messages mean: step and microbatch, bucket or rank, for reports on
/// stalls.
KeyForms key_forms(const Settings& settings, int rank);

/// For the monitor of a run: tables go to `folder`. Session and trainer outlive the monitor.
StallMonitor::Options stall_options(const MpiSession& session, const Trainer& trainer,
                                    const Settings& settings, double timeout_seconds,
                                    const std::string& folder);

}  // namespace llm
