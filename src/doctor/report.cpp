#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include "src/doctor/facts.h"
#include "src/train/cores.h"

namespace llm {
namespace {

using Json = nlohmann::ordered_json;

// Lines of a table before the rest is counted.
constexpr std::size_t most_rows = 64;

std::string more(std::size_t n_all) {
  return n_all > most_rows ? fmt::format("  and {} more (--json has them)\n", n_all - most_rows)
                           : "";
}

std::string ranks_table(const DoctorFacts& facts) {
  std::string text =
      fmt::format("  {:>4} {:<16} {:<12} {:>12} {:>12} {:>16} {:>10}\n", "rank", "node", "cores",
                  "f32 GFLOP/s", "bf16", "clock ahead ms", "disk MB/s");
  for (std::size_t r = 0; r < std::min(facts.ranks.size(), most_rows); ++r) {
    const DoctorFacts::Rank& rank = facts.ranks[r];
    const std::string disk = rank.disk_bytes_per_second > 0
                                 ? fmt::format("{:.0f}", rank.disk_bytes_per_second * 1e-6)
                                 : "";
    const std::string clock = fmt::format("{:.3f} +- {:.3f}", rank.clock_ahead_seconds * 1e3,
                                          rank.clock_uncertainty_seconds * 1e3);
    text += fmt::format("  {:>4} {:<16} {:<12} {:>12.1f} {:>12.1f} {:>16} {:>10}\n", r, rank.host,
                        cores_text(rank.cores), rank.f32_flops * 1e-9, rank.bf16_flops * 1e-9,
                        clock, disk);
  }
  return text + more(facts.ranks.size());
}

std::string pairs_table(const DoctorFacts& facts) {
  if (facts.pairs.empty()) return "";
  std::string text =
      fmt::format("  {:<12} {:<12} {:>12} {:>12}\n", "ranks", "", "latency us", "MB/s");
  for (std::size_t i = 0; i < std::min(facts.pairs.size(), most_rows); ++i) {
    const DoctorFacts::Pair& pair = facts.pairs[i];
    const bool is_near = facts.ranks[static_cast<std::size_t>(pair.a)].node ==
                         facts.ranks[static_cast<std::size_t>(pair.b)].node;
    text += fmt::format("  {:<12} {:<12} {:>12.2f} {:>12.0f}\n",
                        fmt::format("{} - {}", pair.a, pair.b), is_near ? "one node" : "two nodes",
                        pair.latency_seconds * 1e6, pair.bytes_per_second * 1e-6);
  }
  text += more(facts.pairs.size());
  text += fmt::format("  {:<25} {:>12} {:>12}\n", "all-reduce", "own ms", "MPI's ms");
  for (const DoctorFacts::Reduce& reduce : facts.reduces) {
    text +=
        fmt::format("  {:<25} {:>12.2f} {:>12.2f}\n", fmt::format("{} KiB", reduce.n_bytes / 1024),
                    reduce.own_seconds * 1e3, reduce.mpi_seconds * 1e3);
  }
  return text;
}

}  // namespace

std::string to_text(const DoctorFacts& facts, const std::vector<Finding>& findings) {
  std::string text = fmt::format(
      "{}, thread level {}; launcher: {}; {} rank{} on {} node{}\n"
      "a rank that waits {} its core; {}disk: {}\n",
      facts.mpi, facts.thread_level, facts.launcher, facts.ranks.size(),
      facts.ranks.size() == 1 ? "" : "s", facts.n_nodes(), facts.n_nodes() == 1 ? "" : "s",
      facts.yields ? "yields" : "keeps",
      facts.shares_memory ? "ranks map each other's memory; " : "", facts.folder);
  text += ranks_table(facts) + pairs_table(facts);
  for (const DoctorFacts::Library& library : facts.libraries) {
    text += fmt::format("  {} ({}): {}\n", library.what, library.name,
                        library.is_found ? "found" : "not here");
  }
  if (findings.empty()) return text + "nothing is wrong\n";
  for (const Finding& finding : findings) {
    text += fmt::format("{}: {}; {}\n",
                        finding.kind == Finding::Kind::launch ? "wrong launch" : "wrong machine",
                        finding.cause, finding.cure);
  }
  return text;
}

std::string to_json(const DoctorFacts& facts, const std::vector<Finding>& findings) {
  Json json = {{"mpi", facts.mpi},
               {"thread_level", facts.thread_level},
               {"launcher", facts.launcher},
               {"yields", facts.yields},
               {"shares_memory", facts.shares_memory},
               {"folder", facts.folder}};
  for (const char* const list : {"ranks", "pairs", "all_reduces", "libraries", "findings"}) {
    json[list] = Json::array();
  }
  for (const DoctorFacts::Rank& rank : facts.ranks) {
    json["ranks"].push_back({{"node", rank.node},
                             {"host", rank.host},
                             {"cores", rank.cores},
                             {"f32_flops", rank.f32_flops},
                             {"bf16_flops", rank.bf16_flops},
                             {"clock_ahead_seconds", rank.clock_ahead_seconds},
                             {"clock_uncertainty_seconds", rank.clock_uncertainty_seconds},
                             {"disk_bytes_per_second", rank.disk_bytes_per_second},
                             {"disk_sync_seconds", rank.disk_sync_seconds}});
  }
  for (const DoctorFacts::Pair& pair : facts.pairs) {
    json["pairs"].push_back({{"ranks", {pair.a, pair.b}},
                             {"latency_seconds", pair.latency_seconds},
                             {"bytes_per_second", pair.bytes_per_second}});
  }
  for (const DoctorFacts::Reduce& reduce : facts.reduces) {
    json["all_reduces"].push_back({{"bytes", reduce.n_bytes},
                                   {"own_seconds", reduce.own_seconds},
                                   {"mpi_seconds", reduce.mpi_seconds}});
  }
  for (const DoctorFacts::Library& library : facts.libraries) {
    json["libraries"].push_back({{"name", library.name}, {"found", library.is_found}});
  }
  for (const Finding& finding : findings) {
    json["findings"].push_back(
        {{"kind", finding.kind == Finding::Kind::launch ? "launch" : "machine"},
         {"cause", finding.cause},
         {"cure", finding.cure}});
  }
  return json.dump(2) + "\n";
}

}  // namespace llm
