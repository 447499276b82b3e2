#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "src/trace/timeline.h"

namespace llm {

/// The rank-N.json of a folder that llm-train --trace wrote, in rank order. Throws FileError where
/// there is none, DataError where a rank's is missing or none of the run's.
std::vector<std::filesystem::path> trace_files(const std::filesystem::path& folder);

/// Reads the files of all ranks, one at a time. Throws DataError naming the file that is cut off,
/// of another run or another rank than its name says.
Timeline read_timeline(const std::filesystem::path& folder);

/// One file with the events of all ranks, as Perfetto and chrome://tracing open it.
void merge_traces(const std::filesystem::path& folder, const std::filesystem::path& merged);

}  // namespace llm
