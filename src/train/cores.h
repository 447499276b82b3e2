#pragma once
#include <string>
#include <vector>

namespace llm {

/// Cores that this process may run on: what the launcher bound it to, or all of the machine.
int n_bound_cores();

/// What to warn of where ranks have fewer cores than threads that compute, which then take turns:
/// one line that names both numbers and the way out. Empty where no rank has.
///   n_cores  n_bound_cores() of each rank, in rank order
std::string cores_warning(const std::vector<int>& n_cores, int threads_per_rank);

}  // namespace llm
