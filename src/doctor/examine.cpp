#include "src/doctor/examine.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/comm/collective.h"
#include "src/comm/mpi/launch.h"
#include "src/comm/mpi/mpi_transport.h"
#include "src/comm/mpi/probe.h"
#include "src/comm/mpi/shared_ranks.h"
#include "src/comm/queue_poller.h"
#include "src/rt/clock.h"
#include "src/train/cores.h"
#include "src/train/machine.h"

namespace llm {
namespace {

using Rank = DoctorFacts::Rank;

constexpr std::size_t disk_bytes = std::size_t{64} << 20;
constexpr std::array<std::int64_t, 2> reduced_bytes = {64 << 10, 16 << 20};
constexpr int n_reductions = 5;
// Sums are short and messages wait for them, as in training.
constexpr int tiles_per_poll = 64;

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

std::int64_t wall_ns() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool is_first_of_node(const MpiSession& session) {
  return session.rank() == 0 || !session.is_on_this_node(session.rank() - 1);
}

void measure_disk(const std::string& folder, Rank& rank) {
  const std::filesystem::path path =
      std::filesystem::path(folder) / fmt::format(".llm-doctor-{}", getpid());
  const auto write = [&path](std::size_t n_bytes) {
    const std::vector<std::byte> bytes(n_bytes, std::byte{0x5A});
    const std::int64_t begin_ns = now_ns();
    OutputFile file(path);
    file.write(bytes);
    file.finish();
    const double seconds = seconds_since(begin_ns);
    std::filesystem::remove(path);
    return seconds;
  };
  try {
    rank.disk_sync_seconds = write(1);
    rank.disk_bytes_per_second = static_cast<double>(disk_bytes) / write(disk_bytes);
  } catch (const FileError&) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

/// One all-reduce, as a gradient reducer between nodes does it.
struct AllReduce {
  AllReduce(Group& group_, std::int64_t n_elements)
      : group(group_),
        form(best_form(group.size())),
        shape{group.index, group.size(), even_cuts(n_elements, group.size(), 16)},
        reduce(reduce_scatter_plan(form, shape)),
        gather(all_gather_plan(form, shape)),
        values(static_cast<std::size_t>(n_elements), 1.0f),
        scratch(static_cast<std::size_t>(reduce.scratch_elements) + 1) {}
  static MutView view(std::vector<float>& all) {
    return MutView(all.data(), {static_cast<std::int64_t>(all.size())});
  }
  Group& group;
  CollectiveForm form;
  CollectiveShape shape;
  ReduceScatterPlan reduce;
  std::vector<GatherRound> gather;
  std::vector<float> values;
  std::vector<float> scratch;
};

Task<> all_reduce(AllReduce& all, Queue& queue, int n) {
  const CollectiveId id(1, n, 0);
  co_await reduce_scatter(all.group, queue, all.reduce, id, AllReduce::view(all.values),
                          AllReduce::view(all.scratch));
  co_await all_gather(all.group, all.gather, id, AllReduce::view(all.values));
}

std::vector<DoctorFacts::Reduce> measure_reduces(const MpiSession& session) {
  Loop loop;
  MpiTransport transport(session, loop);
  Queue queue;
  QueuePoller poller(queue, tiles_per_poll);
  loop.add_poller(poller);
  std::vector<int> everyone;
  for (int rank = 0; rank < session.n_ranks(); ++rank) everyone.push_back(rank);
  Group group(transport, everyone);
  std::vector<DoctorFacts::Reduce> reduces;
  for (const std::int64_t n_bytes : reduced_bytes) {
    const std::int64_t n_elements = n_bytes / 4;
    AllReduce all(group, n_elements);
    double best = 1e30;
    for (int n = 0; n < n_reductions; ++n) {
      session.barrier();
      const std::int64_t begin_ns = now_ns();
      loop.spawn("all_reduce", all_reduce(all, queue, n));
      loop.run();
      best = std::min(best, seconds_since(begin_ns));
    }
    reduces.push_back({n_bytes, best, measure_mpi_all_reduce(session, n_elements)});
  }
  loop.drop_actors();
  loop.remove_poller(poller);
  return reduces;
}

bool is_found(const char* library) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  dlclose(handle);
  return true;
}

/// One line; the host last, since it may hold anything.
std::string line_of(const Rank& rank, std::int64_t wall_at_origin_ns) {
  return fmt::format("{} {} {} {} {} {} {} {}", wall_at_origin_ns, rank.clock_uncertainty_seconds,
                     rank.f32_flops, rank.bf16_flops, rank.disk_bytes_per_second,
                     rank.disk_sync_seconds, fmt::join(rank.cores, ","), rank.host);
}

Rank rank_of_line(const std::string& line, std::int64_t& wall_at_origin_ns) {
  Rank rank;
  std::istringstream in(line);
  std::string cores;
  in >> wall_at_origin_ns >> rank.clock_uncertainty_seconds >> rank.f32_flops >> rank.bf16_flops >>
      rank.disk_bytes_per_second >> rank.disk_sync_seconds >> cores >> std::ws;
  std::getline(in, rank.host);
  std::istringstream list(cores);
  for (std::string core; std::getline(list, core, ',');) rank.cores.push_back(std::stoi(core));
  return rank;
}

std::vector<Rank> examine_ranks(const MpiSession& session, const std::string& folder) {
  Rank own;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  own.host = host.data();
  own.cores = bound_cores();
  session.barrier();  // all multiply at once, as they do in training
  own.f32_flops = measure_matmul_flops(Dtype::f32);
  own.bf16_flops = measure_matmul_flops(Dtype::bf16);
  for (int rank = 0; rank < session.n_ranks(); ++rank) {  // one disk may be several nodes'
    session.barrier();
    if (rank == session.rank() && is_first_of_node(session)) measure_disk(folder, own);
  }
  const ClockAlignment clock = session.align_clocks();
  own.clock_uncertainty_seconds = static_cast<double>(clock.uncertainty_ns) * 1e-9;
  const std::int64_t wall_at_origin_ns = wall_ns() - (now_ns() - clock.origin_ns);
  std::vector<Rank> ranks;
  std::int64_t first_ns = 0;
  for (const std::string& line : session.gather(line_of(own, wall_at_origin_ns))) {
    std::int64_t there_ns = 0;
    Rank rank = rank_of_line(line, there_ns);
    if (ranks.empty()) first_ns = there_ns;
    rank.node = session.node_of(static_cast<int>(ranks.size()));
    rank.clock_ahead_seconds = static_cast<double>(there_ns - first_ns) * 1e-9;
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace

DoctorFacts examine(const MpiSession& session, const std::string& folder) {
  DoctorFacts facts;
  facts.mpi = mpi_version();
  facts.thread_level = mpi_thread_level();
  const Environment environment = [](const char* name) { return std::getenv(name); };
  const auto n_cores = static_cast<int>(bound_cores().size());
  facts.launcher = read_launch(environment, n_cores).launcher;
  if (facts.launcher.empty()) facts.launcher = "none";
  // The session sets it where ranks outnumber cores; mpirun --oversubscribe does too.
  const char* const yields = std::getenv("OMPI_MCA_mpi_yield_when_idle");
  facts.yields = yields != nullptr && std::string(yields) != "0";
  facts.folder = folder;
  facts.ranks = examine_ranks(session, folder);
  facts.shares_memory = session.n_ranks() > 1 && ranks_share_memory(session);
  for (const auto& [a, b] : pairs_to_measure(session.n_ranks())) {
    session.barrier();
    const PairRates rates = measure_pair(session, a, b);
    facts.pairs.push_back({a, b, rates.latency_seconds, rates.bytes_per_second});
  }
  if (session.n_ranks() > 1) facts.reduces = measure_reduces(session);
  facts.libraries = {{"libcuda.so.1", "CUDA's driver", is_found("libcuda.so.1")},
                     {"libnccl.so.2", "NCCL", is_found("libnccl.so.2")}};
  return facts;
}

}  // namespace llm
