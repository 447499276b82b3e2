#pragma once
#include <string>

#include "src/comm/mpi/mpi_session.h"
#include "src/doctor/facts.h"

namespace llm {

/// Measures what the ranks of `session` run on, for a few seconds; a call of all ranks. Whole on
/// rank 0 alone.
///   folder  where 64 MiB are written, forced to the disk and removed, by one rank a node
/// Throws FileError where it cannot be written.
DoctorFacts examine(const MpiSession& session, const std::string& folder);

}  // namespace llm
