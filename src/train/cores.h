#pragma once
#include <string>
#include <vector>

namespace llm {

/// Cores that this process may run on, ascending: what the launcher bound it to, or all of the
/// machine.
std::vector<int> bound_cores();

/// "0-3,8" for 0, 1, 2, 3 and 8.
std::string cores_text(const std::vector<int>& cores);

/// What to warn of where ranks have fewer cores than threads that compute, which then take turns:
/// one line that names both numbers and the way out. Empty where no rank has.
///   n_cores  of bound_cores() of each rank, in rank order
std::string cores_warning(const std::vector<int>& n_cores, int threads_per_rank);

}  // namespace llm
