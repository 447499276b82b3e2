#pragma once
#include <string>

#include "schedules/grid.h"
#include "schedules/pipeline.h"
#include "src/comm/mpi/mpi_session.h"
#include "src/rt/trace.h"
#include "src/train/settings.h"

namespace llm {

/// What a trace says of its run, beside the timeline: what llm-trace needs to judge it.
struct TraceFacts {
  std::string layout;  ///< in words
  Grid grid;
  Pipeline pipeline;  ///< of one flush
  int n_flushes = 1;  ///< a step
  std::string run_dir;
};
TraceFacts trace_facts(const Settings& settings, const std::string& run_dir);

/// A rank's trace on rank 0's clock, of a run with a name of its own. Every rank calls it, and
/// end_trace when its loop has ended: writes `folder`/rank-R.json. Throws FileError.
Trace begin_trace(const MpiSession& session, const TraceFacts& facts);
void end_trace(const MpiSession& session, Trace& trace, const std::string& folder);

}  // namespace llm
