#include "src/train/rank_facts.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <functional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/train/cores.h"

namespace llm {
namespace {

using Ranks = std::vector<std::size_t>;

/// Of the program's code and constants: the same for a stripped copy of a file, another for every
/// other build. All of a file of 100 MB with its symbols would take 20 times as long.
std::string fingerprint_of_program() {
  std::vector<ElfW(Phdr)> parts;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        static_cast<std::vector<ElfW(Phdr)>*>(data)->assign(object->dlpi_phdr,
                                                            object->dlpi_phdr + object->dlpi_phnum);
        return 1;  // the first object is the program; the libraries are the node's
      },
      &parts);
  const InputFile file("/proc/self/exe");
  Crc32 crc;
  std::int64_t n_bytes = 0;
  std::vector<std::byte> bytes;
  for (const ElfW(Phdr) & part : parts) {
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) != 0) continue;
    bytes.resize(part.p_filesz);
    file.read_at(static_cast<std::int64_t>(part.p_offset), bytes);
    crc.add(bytes.data(), bytes.size());
    n_bytes += static_cast<std::int64_t>(bytes.size());
  }
  return fmt::format("{:08x}-{}", crc.value(), n_bytes);
}

std::string fingerprint_of_file(const std::string& path) {
  if (path.empty()) return "";
  try {
    const std::string text = read_config_file(path);
    return fmt::format("{:08x}-{}", crc32(text.data(), text.size()), text.size());
  } catch (const ConfigError&) {
    return "";
  }
}

/// Variables that every rank has to have alike, or not at all, and the one of each node.
bool is_read(const std::string& variable) {
  for (const char* name : {"BACKEND", "NUM_NODES", "GPUS_PER_NODE", "NODE_RANK"}) {
    if (variable == name) return true;
  }
  std::string name = variable.substr(0, 4);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name == "llm_" && variable.find("__") != std::string::npos;
}

std::string ranks_text(const Ranks& ranks, const std::vector<RankFacts>& facts) {
  constexpr std::size_t n_shown = 4;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), n_shown); ++i) {
    text += fmt::format("{} {} ({})", i > 0 ? "," : "", ranks[i], facts[ranks[i]].host);
  }
  if (ranks.size() > n_shown) text += fmt::format(" and {} more", ranks.size() - n_shown);
  return text;
}

Ranks ranks_where(const std::vector<RankFacts>& facts,
                  const std::function<bool(const RankFacts&)>& holds) {
  Ranks ranks;
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    if (holds(facts[rank])) ranks.push_back(rank);
  }
  return ranks;
}

void check_arguments(const std::vector<RankFacts>& facts) {
  const std::vector<std::string>& first = facts.front().arguments;
  const Ranks others =
      ranks_where(facts, [&first](const RankFacts& one) { return one.arguments != first; });
  if (others.empty()) return;
  const std::vector<std::string>& other = facts[others.front()].arguments;
  const auto [at, other_at] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
  const auto shown = [](auto place, auto end) {
    return place == end ? std::string("nothing") : "'" + *place + "'";
  };
  throw ConfigError(fmt::format(
      "launch: {} {} {} where rank 0 ({}) was started with {}; start all ranks with one command "
      "line",
      ranks_text(others, facts), others.size() == 1 ? "has" : "have", shown(other_at, other.end()),
      facts.front().host, shown(at, first.end())));
}

void check_variables(const std::vector<RankFacts>& facts) {
  const RankFacts& zero = facts.front();
  for (std::size_t rank = 1; rank < facts.size(); ++rank) {
    for (const auto& [name, value] : facts[rank].variables) {
      const auto found = zero.variables.find(name);
      if (name == "NODE_RANK" || (found != zero.variables.end() && found->second == value)) {
        continue;
      }
      throw ConfigError(fmt::format(
          "environment {}: '{}' on rank {} ({}), but {} on rank 0 ({}), whose environment is the "
          "run's; set it alike on all nodes, or unset it on the others",
          name, value, rank, facts[rank].host,
          found == zero.variables.end() ? "not set" : "'" + found->second + "'", zero.host));
    }
  }
}

bool is_from(const LoadedConfig& loaded, const std::string& field, std::string_view origin) {
  const auto found = loaded.origins.find(field);
  return found != loaded.origins.end() && found->second.rfind(origin, 0) == 0;
}

/// "2 nodes of 4 ranks", "2 nodes of 4 and 3 ranks".
std::string nodes_text(const std::vector<int>& n_ranks_of) {
  std::vector<int> sizes;
  for (const int n : n_ranks_of) {
    if (sizes.empty() || std::find(sizes.begin(), sizes.end(), n) == sizes.end()) {
      sizes.push_back(n);
    }
  }
  return fmt::format("{} node{} of {} rank{}", n_ranks_of.size(), n_ranks_of.size() == 1 ? "" : "s",
                     fmt::join(sizes, " and "), sizes.size() == 1 && sizes[0] == 1 ? "" : "s");
}

void check_node_ranks(const std::vector<RankFacts>& facts, const std::vector<int>& node_of) {
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    const auto found = facts[rank].variables.find("NODE_RANK");
    if (found == facts[rank].variables.end() || found->second.empty()) continue;
    if (found->second == std::to_string(node_of[rank])) continue;
    throw ConfigError(fmt::format(
        "environment NODE_RANK: {} on {} (rank {}), which is node {} of {} as MPI counts them from "
        "0; unset it: the launcher knows the nodes",
        found->second, facts[rank].host, rank, node_of[rank], node_of.back() + 1));
  }
}

}  // namespace

RankFacts own_facts(const std::string& config_path, const std::vector<std::string>& command) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::vector<int> cores = bound_cores();
  RankFacts facts{.host = host.data(),
                  .cores = cores_text(cores),
                  .n_cores = static_cast<int>(cores.size()),
                  .program = fingerprint_of_program(),
                  .config_file = fingerprint_of_file(config_path),
                  .arguments = {},
                  .variables = {}};
  if (!command.empty()) facts.arguments.assign(command.begin() + 1, command.end());
  for (const auto& [name, value] : process_environment()) {
    if (is_read(name)) facts.variables.emplace(name, value);
  }
  return facts;
}

std::string to_text(const RankFacts& facts) {
  return nlohmann::json{{"host", facts.host},           {"cores", facts.cores},
                        {"n_cores", facts.n_cores},     {"device", facts.device},
                        {"program", facts.program},     {"config_file", facts.config_file},
                        {"arguments", facts.arguments}, {"variables", facts.variables}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFacts facts_of(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {.host = json.at("host"),
          .cores = json.at("cores"),
          .n_cores = json.at("n_cores"),
          .device = json.at("device"),
          .program = json.at("program"),
          .config_file = json.at("config_file"),
          .arguments = json.at("arguments").get<std::vector<std::string>>(),
          .variables = json.at("variables").get<std::map<std::string, std::string>>()};
}

void check_alike(const std::vector<RankFacts>& facts, const std::vector<int>& node_of,
                 const std::string& config_path) {
  const RankFacts& zero = facts.front();
  const Ranks builds =
      ranks_where(facts, [&zero](const RankFacts& one) { return one.program != zero.program; });
  if (!builds.empty()) {
    throw ConfigError(fmt::format(
        "launch: {} {} another build of this program ({}) than rank 0 ({}: {}); start one file on "
        "all nodes, best from a folder that all of them see",
        ranks_text(builds, facts), builds.size() == 1 ? "runs" : "run",
        facts[builds.front()].program, zero.host, zero.program));
  }
  check_arguments(facts);
  const Ranks files = ranks_where(facts, [&zero](const RankFacts& one) {
    return !one.config_file.empty() && one.config_file != zero.config_file;
  });
  if (!files.empty() && !zero.config_file.empty()) {
    throw ConfigError(fmt::format(
        "{}: {} {} another file there ({}) than rank 0 ({}: {}); copy one to all nodes, or put it "
        "where all of them see the same",
        config_path, ranks_text(files, facts), files.size() == 1 ? "reads" : "read",
        facts[files.front()].config_file, zero.host, zero.config_file));
  }
  check_variables(facts);
  check_node_ranks(facts, node_of);
}

std::vector<std::string> check_nodes(const LoadedConfig& loaded, const std::vector<int>& node_of) {
  std::vector<int> n_ranks_of(static_cast<std::size_t>(node_of.back()) + 1);
  for (const int node : node_of) ++n_ranks_of[static_cast<std::size_t>(node)];
  const DistributedConfig& d = loaded.config.distributed;
  const auto n_nodes = static_cast<std::int64_t>(n_ranks_of.size());
  const bool even = !d.gpus_per_node || std::all_of(n_ranks_of.begin(), n_ranks_of.end(),
                                                    [&d](int n) { return n == *d.gpus_per_node; });
  struct Contradiction {
    std::string field;
    std::int64_t value;
    bool is_so;
  };
  std::vector<std::string> notes;
  for (const Contradiction& one :
       {Contradiction{"distributed.num_nodes", d.num_nodes, d.num_nodes != n_nodes},
        Contradiction{"distributed.gpus_per_node", d.gpus_per_node.value_or(0), !even}}) {
    if (!one.is_so || is_from(loaded, one.field, "default")) continue;
    const std::string text =
        fmt::format("{}: {}: {}, but MPI sees {}", loaded.origins.at(one.field), one.field,
                    one.value, nodes_text(n_ranks_of));
    if (is_from(loaded, one.field, "environment") || is_from(loaded, one.field, "command line")) {
      throw ConfigError(text +
                        "; unset it, or start as many (mpirun -n and --map-by ppr:N:node, "
                        "srun --nodes and --ntasks-per-node)");
    }
    notes.push_back(text + ", which counts");
  }
  return notes;
}

std::string binding_table(const std::vector<RankFacts>& facts, std::size_t max_rows) {
  struct Row {
    std::size_t first, last;
  };
  std::vector<Row> rows;
  const auto binding = [](const RankFacts& one) {
    return std::tie(one.host, one.cores, one.device);
  };
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    const bool goes_on = rank > 0 && binding(facts[rank]) == binding(facts[rank - 1]);
    if (goes_on) {
      rows.back().last = rank;
    } else {
      rows.push_back({rank, rank});
    }
  }
  const std::size_t n_shown = std::min(rows.size(), max_rows);
  std::size_t host_width = 4, cores_width = 5;
  for (std::size_t i = 0; i < n_shown; ++i) {
    host_width = std::max(host_width, facts[rows[i].first].host.size());
    cores_width = std::max(cores_width, facts[rows[i].first].cores.size());
  }
  std::string text = fmt::format("{:<9}  {:<{}}  {:<{}}  device", "ranks", "node", host_width,
                                 "cores", cores_width);
  for (std::size_t i = 0; i < n_shown; ++i) {
    const auto& [first, last] = rows[i];
    const RankFacts& one = facts[first];
    text += fmt::format("\n{:<9}  {:<{}}  {:<{}}  {}",
                        first == last ? std::to_string(first) : fmt::format("{}-{}", first, last),
                        one.host, host_width, one.cores, cores_width, one.device);
  }
  if (n_shown < rows.size()) {
    text += fmt::format("\nand {} ranks more", facts.size() - rows[n_shown].first);
  }
  return text;
}

}  // namespace llm
