#include "src/train/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>

#include <fmt/format.h>
#include "src/base/check.h"

namespace llm {

std::vector<int> bound_cores() {
  // The kernel refuses a mask that is shorter than its own.
  for (int n_places = 1024;; n_places *= 2) {
    const std::size_t n_bytes = CPU_ALLOC_SIZE(n_places);
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(n_places), [](cpu_set_t* set) { CPU_FREE(set); });
    if (sched_getaffinity(0, n_bytes, mask.get()) == 0) {
      std::vector<int> cores;
      for (int core = 0; core < n_places; ++core) {
        if (CPU_ISSET_S(core, n_bytes, mask.get())) cores.push_back(core);
      }
      return cores;
    }
    CHECK_CONTRACT(errno == EINVAL && n_places < 1 << 20, "a process can read its own affinity");
  }
}

std::string cores_text(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", cores[i]) : fmt::format("{}-{}", cores[i], cores[last]);
    i = last + 1;
  }
  return text;
}

std::string cores_warning(const std::vector<int>& n_cores, int threads_per_rank) {
  const auto is_short = [&](int n) { return n < threads_per_rank; };
  const auto first = std::find_if(n_cores.begin(), n_cores.end(), is_short);
  if (first == n_cores.end()) return "";
  const auto n_others = std::count_if(first + 1, n_cores.end(), is_short);
  return fmt::format(
      "warning: distributed.threads_per_rank is {}, but rank {}{} may run on {} core{} only; start "
      "with mpirun --map-by slot:PE={} or --bind-to none, or write threads_per_rank: {}",
      threads_per_rank, first - n_cores.begin(),
      n_others > 0 ? fmt::format(" (and {} more)", n_others) : "", *first, *first == 1 ? "" : "s",
      threads_per_rank, *first);
}

}  // namespace llm
