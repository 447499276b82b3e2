#include "src/train/run_dir.h"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/rt/clock.h"

namespace llm {
namespace {

std::string fresh_name() {
  if (const char* const job = std::getenv("SLURM_JOB_ID")) {
    const char* const restarts = std::getenv("SLURM_RESTART_COUNT");
    return fmt::format("runs/slurm-{}{}", job, restarts ? std::string("-") + restarts : "");
  }
  return fmt::format("runs/{:%Y%m%d-%H%M%S}-{}", fmt::localtime(std::time(nullptr)), getpid());
}

bool holds(const std::filesystem::path& path, const std::string& text) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {}) == text;
}

}  // namespace

std::string run_dir_of(const std::optional<std::string>& configured) {
  return configured ? *configured : fresh_name();
}

void check_unused(const std::string& run_dir) {
  if (!std::filesystem::exists(std::filesystem::path(run_dir) / "metrics.jsonl")) return;
  throw ConfigError(
      fmt::format("logging.run_dir: {} holds a run already (metrics.jsonl); name another folder, "
                  "or move it away, or set checkpoint.resume_from_checkpoint: auto to go on",
                  run_dir));
}

void check_all_nodes_see(const MpiSession& session, const std::string& field,
                         const std::filesystem::path& folder,
                         const std::vector<std::string>& hosts) {
  if (session.n_nodes() == 1) return;
  const std::filesystem::path path = session.broadcast(
      (folder / fmt::format(".seen-{}-{}", getpid(), std::time(nullptr))).string());
  // On one host too a folder of the same name may be another one: the text is this start's alone.
  const std::string text = session.broadcast(fmt::format("{} {}", getpid(), now_ns()));
  const bool is_first = session.rank() == 0;
  if (is_first) OutputFile(path).append(text);
  session.barrier();
  bool sees = true;
  if (session.local_rank() == 0) {
    sees = holds(path, text);
    // A network file system may show what it knew of the folder before.
    for (int n = 0; !sees && n < 20; ++n) {
      usleep(50'000);
      sees = holds(path, text);
    }
  }
  const std::vector<std::string> all = session.gather(sees ? "1" : "0");
  if (!is_first) return;
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  std::string blind;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == "1") continue;
    blind += fmt::format("{}{} (rank {})", blind.empty() ? "" : ", ", hosts[rank], rank);
  }
  if (blind.empty()) return;
  throw ConfigError(
      fmt::format("{}: {} on {} (rank 0) is another folder than on {}; name one that all nodes "
                  "share",
                  field, folder.string(), hosts[0], blind));
}

std::string file_suffix(const std::string& run_dir, std::int64_t first_step) {
  const auto is_taken = [&run_dir](const std::string& suffix) {
    return std::filesystem::exists(std::filesystem::path(run_dir) /
                                   ("metrics" + suffix + ".jsonl"));
  };
  if (!is_taken("")) return "";
  const std::string suffix = fmt::format("-from-step-{:08}", first_step);
  if (!is_taken(suffix)) return suffix;
  int n = 2;
  while (is_taken(fmt::format("{}-{}", suffix, n))) ++n;
  return fmt::format("{}-{}", suffix, n);
}

std::string cache_dir(const std::optional<std::string>& configured) {
  if (configured) return *configured;
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::string(cache) + "/llm-train";
  }
  if (const char* const home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::string(home) + "/.cache/llm-train";
  }
  throw ConfigError(
      "data.cache_dir: not set, and neither XDG_CACHE_HOME nor HOME says where caches go; set it");
}

}  // namespace llm
