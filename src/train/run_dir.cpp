#include "src/train/run_dir.h"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include "src/base/error.h"

namespace llm {
namespace {

std::string fresh_name() {
  if (const char* const job = std::getenv("SLURM_JOB_ID")) {
    const char* const restarts = std::getenv("SLURM_RESTART_COUNT");
    return fmt::format("runs/slurm-{}{}", job, restarts ? std::string("-") + restarts : "");
  }
  return fmt::format("runs/{:%Y%m%d-%H%M%S}-{}", fmt::localtime(std::time(nullptr)), getpid());
}

}  // namespace

std::string make_run_dir(const std::optional<std::string>& configured, bool goes_on) {
  const std::filesystem::path folder = configured ? *configured : fresh_name();
  if (!goes_on && std::filesystem::exists(folder / "metrics.jsonl")) {
    throw ConfigError(
        fmt::format("logging.run_dir: {} holds a run already (metrics.jsonl); name another folder, "
                    "or move it away, or set checkpoint.resume_from_checkpoint: auto to go on",
                    folder.string()));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder)) {
    throw FileError(fmt::format("logging.run_dir: cannot make {}: {}", folder.string(),
                                error ? error.message() : "it is a file"));
  }
  return folder.string();
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
