#pragma once
#include <map>
#include <string>
#include <vector>

#include "src/config/load.h"

namespace llm {

/// What a rank finds at the start of a run, for rank 0 to compare and to show.
struct RankFacts {
  std::string host;
  std::string cores;  ///< that it may run on: "0-3,8"
  int n_cores = 0;
  std::string device = "cpu";
  std::string program;      ///< a fingerprint of the code that runs
  std::string config_file;  ///< a fingerprint of the YAML file as this rank reads it; empty: it
                            ///< reads none, which only rank 0 has to
  std::vector<std::string> arguments;            ///< argv without the program's name
  std::map<std::string, std::string> variables;  ///< of the environment, that a run's fields read
  bool operator==(const RankFacts&) const = default;
};

/// Of this process. `command` is argv as it was typed.
RankFacts own_facts(const std::string& config_path, const std::vector<std::string>& command);

std::string to_text(const RankFacts& facts);
RankFacts facts_of(const std::string& text);

/// Refuses (ConfigError) ranks that were not started alike: of another build, with other arguments,
/// another YAML file where they read it, or a variable that rank 0 does not have or has otherwise;
/// and a NODE_RANK that is not the node's number as MPI counts.
/// The message names ranks, hosts and both sides. What a rank lacks and rank 0 has is fine: rank
/// 0's configuration is everybody's.
///   facts    of each rank, in rank order
///   node_of  of each rank: 0, 0, 1, ..., ascending
void check_alike(const std::vector<RankFacts>& facts, const std::vector<int>& node_of,
                 const std::string& config_path);

/// Refuses (ConfigError) NUM_NODES and GPUS_PER_NODE of the environment, and
/// distributed.num_nodes and gpus_per_node of the command line, that contradict what MPI sees.
/// Returns a note for each that the file says otherwise.
std::vector<std::string> check_nodes(const LoadedConfig& loaded, const std::vector<int>& node_of);

/// Rank, node, cores and device of every rank; neighbouring ranks that agree share a line. Several
/// lines without an end of line; at most `max_rows` rows, and how many ranks the rest are.
std::string binding_table(const std::vector<RankFacts>& facts, std::size_t max_rows = 32);

}  // namespace llm
