#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/doctor/facts.h"

namespace llm {
namespace {

using Kind = Finding::Kind;
using Rank = DoctorFacts::Rank;
using Pair = DoctorFacts::Pair;

constexpr int most_ranks_with_all_pairs = 8;
constexpr int most_pairs_of_a_kind = 64;

// A pair that is so many times worse than the median is no pair of the same network.
constexpr double slow_pair = 5;
// Below it latencies differ by what else runs, and no training notices.
constexpr double unnoticed_latency_seconds = 20e-6;
// Within a node a message takes 0.2 to 2 us where both ranks run: more is a wait for a core.
constexpr double slow_local_latency_seconds = 200e-6;
// A core that does so much less than the median shares its units or is throttled.
constexpr double slow_core = 0.7;
// Locks and logs of a run go by the wall clock: a heartbeat counts as old after 60 s.
constexpr double most_clock_skew_seconds = 1;
// A checkpoint of a 1B model is 12 GB: an hour at 3 MB/s, four minutes at this.
constexpr double slow_disk_bytes_per_second = 50e6;
constexpr double slow_sync_seconds = 1;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  return text;
}

/// Ranks that have fewer cores among them than they are.
void check_cores(const DoctorFacts& facts, std::vector<Finding>& found) {
  std::map<std::pair<int, std::vector<int>>, std::vector<int>> by_cores;
  std::map<int, std::set<int>> cores_of_node;
  std::map<int, int> ranks_of_node;
  for (std::size_t r = 0; r < facts.ranks.size(); ++r) {
    const Rank& rank = facts.ranks[r];
    by_cores[{rank.node, rank.cores}].push_back(static_cast<int>(r));
    cores_of_node[rank.node].insert(rank.cores.begin(), rank.cores.end());
    ++ranks_of_node[rank.node];
  }
  std::set<int> named;
  for (const auto& [place, ranks] : by_cores) {
    const auto& [node, cores] = place;
    if (cores.empty() || ranks.size() <= cores.size()) continue;
    const bool has_others = cores_of_node[node].size() > cores.size();
    named.insert(node);
    found.push_back(
        {Kind::launch,
         fmt::format("{} of {} share {} core{}{}", ranks_text(ranks), facts.ranks[ranks[0]].host,
                     cores.size(), cores.size() == 1 ? "" : "s",
                     facts.yields ? "" : ", and a rank that waits keeps its core from the others"),
         has_others
             ? "bind each to its own: mpirun --bind-to core, srun --cpu-bind=cores; or none: "
               "mpirun --bind-to none"
             : "start fewer ranks, or, where the node has more cores, mpirun --bind-to "
               "none"});
  }
  for (const auto& [node, n_ranks] : ranks_of_node) {
    const auto n_cores = static_cast<int>(cores_of_node[node].size());
    if (n_cores == 0 || n_ranks <= n_cores || named.contains(node)) continue;
    found.push_back({Kind::launch,
                     fmt::format("node {} has {} ranks on {} cores", node, n_ranks, n_cores),
                     "start fewer ranks there, or bind them to more cores"});
  }
}

void check_pairs(const DoctorFacts& facts, bool within_node, std::vector<Finding>& found) {
  std::vector<const Pair*> pairs;
  std::vector<double> latencies;
  std::vector<double> rates;
  for (const Pair& pair : facts.pairs) {
    if ((facts.ranks[pair.a].node == facts.ranks[pair.b].node) != within_node) continue;
    pairs.push_back(&pair);
    latencies.push_back(pair.latency_seconds);
    rates.push_back(pair.bytes_per_second);
  }
  const double latency = median(latencies);
  const double rate = median(rates);
  const auto names = [&](const Pair& pair) {
    return fmt::format("ranks {} ({}) and {} ({})", pair.a, facts.ranks[pair.a].host, pair.b,
                       facts.ranks[pair.b].host);
  };
  const char* const cure = within_node ? "look at what else runs on the node, and at its cores"
                                       : "look at these nodes' network: cables, link speed, "
                                         "interface (OMPI_MCA_btl_tcp_if_include)";
  for (const Pair* const pair : pairs) {
    if (pair->latency_seconds > std::max(slow_pair * latency, unnoticed_latency_seconds)) {
      found.push_back({Kind::machine,
                       fmt::format("{}: a message takes {:.1f} us, {:.1f} us at the median",
                                   names(*pair), pair->latency_seconds * 1e6, latency * 1e6),
                       cure});
    } else if (pair->bytes_per_second * slow_pair < rate) {
      found.push_back({Kind::machine,
                       fmt::format("{}: {:.0f} MB/s, {:.0f} MB/s at the median", names(*pair),
                                   pair->bytes_per_second * 1e-6, rate * 1e-6),
                       cure});
    }
  }
  if (within_node && latency > slow_local_latency_seconds) {
    found.push_back({Kind::launch,
                     fmt::format("ranks of one node take {:.0f} us for a message", latency * 1e6),
                     "they wait for cores: fewer ranks, cores of their own (--bind-to core), or "
                     "OMPI_MCA_mpi_yield_when_idle=1"});
  }
}

void check_products(const DoctorFacts& facts, std::vector<Finding>& found) {
  std::vector<double> all;
  for (const Rank& rank : facts.ranks) all.push_back(rank.f32_flops);
  const double usual = median(all);
  for (std::size_t r = 0; r < facts.ranks.size(); ++r) {
    const double flops = facts.ranks[r].f32_flops;
    if (flops >= slow_core * usual) continue;
    found.push_back({Kind::machine,
                     fmt::format("rank {} ({}) multiplies at {:.1f} GFLOP/s, {:.1f} at the median",
                                 r, facts.ranks[r].host, flops * 1e-9, usual * 1e-9),
                     "look for other work on its core, a core that is shared, or a node that is "
                     "throttled: every step waits for the slowest rank"});
  }
}

void check_clocks(const DoctorFacts& facts, std::vector<Finding>& found) {
  std::set<int> named;
  for (const Rank& rank : facts.ranks) {
    const double skew = std::abs(rank.clock_ahead_seconds) - rank.clock_uncertainty_seconds;
    if (skew < most_clock_skew_seconds || !named.insert(rank.node).second) continue;
    found.push_back({Kind::machine,
                     fmt::format("the clock of {} is {:.1f} s {} that of {}", rank.host,
                                 std::abs(rank.clock_ahead_seconds),
                                 rank.clock_ahead_seconds > 0 ? "ahead of" : "behind",
                                 facts.ranks.front().host),
                     "let NTP or chrony set it: locks and logs of a run go by it"});
  }
}

void check_disks(const DoctorFacts& facts, std::vector<Finding>& found) {
  for (const Rank& rank : facts.ranks) {
    const double rate = rank.disk_bytes_per_second;
    const std::string where = fmt::format("{} on {}", facts.folder, rank.host);
    const char* const cure =
        "name a folder on a faster disk: logging.run_dir, "
        "checkpoint.checkpoint_dir, data.cache_dir";
    if (rate > 0 && rate < slow_disk_bytes_per_second) {
      found.push_back({Kind::machine,
                       fmt::format("{} takes {:.1f} MB/s: a checkpoint of 1 GB needs {:.0f} s",
                                   where, rate * 1e-6, 1e9 / rate),
                       cure});
    } else if (rank.disk_sync_seconds > slow_sync_seconds) {
      found.push_back({Kind::machine,
                       fmt::format("{} takes {:.1f} s to force a small file to the disk", where,
                                   rank.disk_sync_seconds),
                       cure});
    }
  }
}

}  // namespace

std::vector<std::pair<int, int>> pairs_to_measure(int n_ranks) {
  std::vector<std::pair<int, int>> pairs;
  if (n_ranks <= most_ranks_with_all_pairs) {
    for (int a = 0; a < n_ranks; ++a) {
      for (int b = a + 1; b < n_ranks; ++b) pairs.emplace_back(a, b);
    }
    return pairs;
  }
  // Of very many ranks, every so many, so that each part of the machine has some.
  const int stride = (n_ranks + most_pairs_of_a_kind - 1) / most_pairs_of_a_kind;
  for (int a = 0; a < n_ranks; a += stride) pairs.emplace_back(a, (a + 1) % n_ranks);
  for (int a = 0; a < n_ranks / 2; a += stride) pairs.emplace_back(a, a + n_ranks / 2);
  return pairs;
}

std::vector<Finding> findings(const DoctorFacts& facts) {
  std::vector<Finding> found;
  check_cores(facts, found);
  // Ranks that share cores are slow at everything: the rest would be echoes.
  const bool share_cores = !found.empty();
  if (!share_cores) check_pairs(facts, true, found);
  check_pairs(facts, false, found);
  if (!share_cores) check_products(facts, found);
  check_clocks(facts, found);
  check_disks(facts, found);
  if (facts.n_nodes() == 1 && facts.ranks.size() > 1 && !facts.shares_memory) {
    found.push_back({Kind::machine,
                     "ranks of this machine cannot map each other's memory, so gradients are sent",
                     "start them as one user, in one container, with /proc"});
  }
  return found;
}

int exit_code_of(const std::vector<Finding>& findings) {
  const auto has = [&findings](Kind kind) {
    return std::any_of(findings.begin(), findings.end(),
                       [kind](const Finding& finding) { return finding.kind == kind; });
  };
  if (has(Kind::launch)) return static_cast<int>(ExitCode::config);
  return static_cast<int>(has(Kind::machine) ? ExitCode::internal : ExitCode::ok);
}

}  // namespace llm
