#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "actors/metrics.h"
#include "src/train/checkpoint_writer.h"
#include "src/train/event_file.h"
#include "src/train/settings.h"

namespace llm {

enum class ProgressStyle : std::uint8_t { line, bar, off };

/// logging.progress as set; `auto` is a bar where the launcher's standard output is a terminal,
/// lines elsewhere. A rank's own isatty lies under mpirun, so its parent's output is asked, or
/// LLM_TRAIN_TTY.
ProgressStyle progress_style(std::string_view configured);

/// Rank 0's voice: the progress line or bar on standard output, and run_dir/metrics.jsonl with one
/// line for each step and validation, with a TensorBoard event file beside it where that is asked.
class Progress {
 public:
  struct Options {
    ProgressStyle style = ProgressStyle::line;
    std::int64_t log_interval = 10;  ///< steps between lines; the first and last are always shown
    double flops_per_token = 0;
    double peak_flops = 0;  ///< of all ranks together, measured; 0: not known
    std::int64_t seq_len = 1;
    std::int64_t process_begin_ns = 0;
    bool tensorboard = false;  ///< the same numbers as an event file in the folder of metrics.jsonl
  };
  /// `path`: of metrics.jsonl. Throws FileError when it cannot be written, or is there.
  Progress(const Settings& settings, Options options, std::string path);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step_done(const StepMetrics& metrics);
  void validation_done(const ValidationMetrics& metrics);
  void saved(const SavedCheckpoint& checkpoint);
  /// A line of text that a bar does not overwrite.
  void say(std::string_view text);
  double last_loss() const { return last_loss_; }

 private:
  void record(const nlohmann::ordered_json& json);
  std::string line_of(const StepMetrics& metrics, double tokens_per_second) const;
  void clear_bar();

  const Settings settings_;
  const Options options_;
  std::string path_;
  std::FILE* file_ = nullptr;
  std::unique_ptr<EventFile> events_;  // where options_.tensorboard
  std::int64_t first_step_ns_ = 0;
  std::int64_t window_begin_step_ = 0;
  double window_seconds_ = 0;
  double last_loss_ = 0;
  bool bar_shown_ = false;
};

}  // namespace llm
