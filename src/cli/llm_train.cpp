#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/comm/mpi/launch.h"
#include "src/config/explain.h"
#include "src/train/run.h"

namespace {

using llm::ExitCode;

struct CommandLine {
  llm::RunRequest request;
  bool plan = false;
  std::int64_t ranks = 0;
  std::int64_t ranks_per_node = 0;
  bool explains = false;
  std::string explain;
};

constexpr const char* footer = R"(
Starting ranks:
  mpirun -n 4 llm-train --config-path configs/ddp.yaml
  srun --mpi=pmix -K -n 4 llm-train --config-path configs/ddp.yaml

Sources of a field's value, later ones win: its default, the YAML file, the environment
(LLM_<SECTION>__<FIELD>, such as LLM_TRAINING__LR=3e-4), the command line (training.lr=3e-4).
Unknown names are errors.

Exit codes: 0 done, 64 wrong usage, 65 wrong data, 70 a fault, a lost peer or a stall,
74 a file that cannot be read or written, 75 stopped by SIGUSR1 or SIGTERM after saving,
78 wrong configuration or launch.)";

/// True on the rank that speaks for all before MPI is up.
bool speaks() {
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (const char* const rank = std::getenv(name)) return std::string(rank) == "0";
  }
  return true;
}

/// Before MPI is up every rank finds the same fault. The launcher ends all ranks when one leaves,
/// so the others give the one that speaks the time to; what only they found they say themselves.
[[noreturn]] void leave(ExitCode code, const std::string& message) {
  if (!speaks()) sleep(5);
  fmt::print(stderr, "error: {}\n", message);
  std::exit(static_cast<int>(code));
}

bool is_srun_alone() {
  return std::getenv("SLURM_PROCID") != nullptr && std::getenv("OMPI_COMM_WORLD_RANK") == nullptr;
}

/// For what follows from the command line or the launch, which under srun all tasks find alike:
/// there one of them says it. `srun -K` ends the others when one leaves; they leave with the same
/// code instead.
[[noreturn]] void leave_together(ExitCode code, const std::string& message) {
  if (speaks() || !is_srun_alone()) leave(code, message);
  std::signal(SIGTERM, SIG_IGN);
  usleep(300'000);
  std::exit(static_cast<int>(code));
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app{
      "Trains decoder-only language models on many ranks: the layout changes speed and memory, "
      "never the numbers.",
      "llm-train"};
  app.footer(footer);
  app.set_version_flag("--version", "llm-train 0.1.0");
  app.add_option("--config-path", line.request.config_path,
                 "the YAML file; without it, all defaults");
  app.add_option("--task", line.request.task,
                 "lm (tokenizes once into a cache), stream_lm (never holds the data), sft (answers "
                 "alone)")
      ->capture_default_str();
  app.add_option(
      "--trace", line.request.trace_dir,
      "write a timeline of every actor of every rank into this folder (opens in Perfetto)");
  app.add_flag("--plan", line.plan,
               "print grid, units, buckets, bytes and messages of a run, and stop; needs no ranks");
  CLI::Option* const ranks =
      app.add_option("--ranks", line.ranks, "with --plan: plan for so many ranks (default 1)")
          ->check(CLI::Range(1, 1 << 20));
  app.add_option("--ranks-per-node", line.ranks_per_node,
                 "with --plan: ranks of one node (default: all)")
      ->check(CLI::Range(1, 1 << 20));
  CLI::Option* const explain =
      app.add_option("--explain", line.explain,
                     "what a field means: section.field, a section, or nothing for all of them")
          ->expected(0, 1);
  app.add_option("overrides", line.request.overrides, "section.field=value ...");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(speaks() ? app.exit(error) : 0);
    leave_together(ExitCode::usage,
                   fmt::format("{}; llm-train --help lists what there is", error.what()));
  }
  line.explains = explain->count() > 0;
  if (!line.plan && (ranks->count() > 0 || line.ranks_per_node > 0)) {
    leave_together(ExitCode::usage,
                   "--ranks and --ranks-per-node belong to --plan; mpirun -n N starts N ranks");
  }
  for (const std::string& override_text : line.request.overrides) {
    if (override_text.find('=') == std::string::npos) {
      leave_together(ExitCode::usage,
                     fmt::format("'{}' is not section.field=value; llm-train --explain lists all "
                                 "fields",
                                 override_text));
    }
  }
  return line;
}

int without_ranks(const CommandLine& line) {
  if (line.explains) {
    const std::string text = line.explain.empty() ? llm::explain_all() : llm::explain(line.explain);
    fmt::print("{}", text);
    return 0;
  }
  const std::int64_t n_ranks = line.ranks > 0 ? line.ranks : 1;
  const std::int64_t per_node = line.ranks_per_node > 0 ? line.ranks_per_node : n_ranks;
  fmt::print("{}", llm::plan_run(line.request, n_ranks, per_node));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::signal(SIGXFSZ, SIG_IGN);  // a file above the user's limit is an error with a name
  CommandLine line = parse(argc, argv);
  line.request.process_begin = begin;
  line.request.command.assign(argv, argv + argc);
  try {
    if (line.explains || line.plan) return without_ranks(line);
    llm::MpiSession session;
    return llm::run_and_report(session, [&] { return llm::run_training(session, line.request); });
  } catch (const llm::LaunchError& error) {
    leave_together(error.code(), error.what());
  } catch (const llm::Error& error) {
    leave(error.code(), error.what());
  } catch (const std::exception& error) {
    leave(ExitCode::internal, error.what());
  }
}
