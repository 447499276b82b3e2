#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llm {

/// What llm-doctor finds out, as plain values.
struct DoctorFacts {
  struct Rank {
    int node = 0;
    std::string host;
    std::vector<int> cores;  ///< that it may run on, ascending
    double f32_flops = 0;    ///< of one thread's matrix products
    double bf16_flops = 0;
    double clock_ahead_seconds = 0;  ///< of the wall clock, against rank 0's
    double clock_uncertainty_seconds = 0;
    double disk_bytes_per_second = 0;  ///< of the first rank of a node; 0: not measured
    double disk_sync_seconds = 0;      ///< to force a small file to the disk
  };
  struct Pair {
    int a = 0;
    int b = 0;
    double latency_seconds = 0;
    double bytes_per_second = 0;
  };
  struct Reduce {
    std::int64_t n_bytes = 0;
    double own_seconds = 0;
    double mpi_seconds = 0;
  };
  struct Library {
    std::string name;  ///< as it is opened: "libcuda.so.1"
    std::string what;  ///< "CUDA's driver"
    bool is_found = false;
  };
  std::string mpi;
  std::string thread_level;
  std::string launcher;        ///< "mpirun", "srun", "none"
  bool yields = false;         ///< a rank that waits lets others run on its core
  bool shares_memory = false;  ///< all ranks map each other's memory
  std::string folder;          ///< whose disk was measured
  std::vector<Rank> ranks;
  std::vector<Pair> pairs;
  std::vector<Reduce> reduces;
  std::vector<Library> libraries;

  int n_nodes() const { return ranks.empty() ? 0 : ranks.back().node + 1; }
};

/// The pairs of ranks that are measured: all of up to eight ranks; of more, each rank with the next
/// one and with the one half of all ranks further, at most 64 of each.
std::vector<std::pair<int, int>> pairs_to_measure(int n_ranks);

/// Something that is wrong, in one line each.
struct Finding {
  enum class Kind : std::uint8_t { launch, machine };
  Kind kind = Kind::machine;
  std::string cause;
  std::string cure;
};

/// What is wrong. The rules' limits stand beside them.
std::vector<Finding> findings(const DoctorFacts& facts);

/// The process's exit code: 0 where nothing is wrong, 78 where the launch is, 70 where the machine
/// is.
int exit_code_of(const std::vector<Finding>& findings);

/// A table for people, one line for each finding at its end.
std::string to_text(const DoctorFacts& facts, const std::vector<Finding>& findings);
/// The same as one JSON object, in SI units.
std::string to_json(const DoctorFacts& facts, const std::vector<Finding>& findings);

}  // namespace llm
