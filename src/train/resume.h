#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/checkpoint/reader.h"
#include "src/config/load.h"
#include "src/train/trainer.h"

namespace llm {

/// Where checkpoints of the run are: checkpoint.checkpoint_dir, or checkpoints/ in `run_dir`.
std::filesystem::path checkpoint_folder(const Config& config, const std::string& run_dir);

/// What checkpoint.resume_from_checkpoint asks for, to be tried one after the other.
struct Candidates {
  std::vector<std::filesystem::path> checkpoints;
  bool falls_back = false;  ///< auto: a damaged one is passed over with a warning
};
/// Nothing where nothing is asked for, or under auto where `folder` has no checkpoint at all.
/// Throws ConfigError where auto or latest have no folder that an earlier start can have written
/// to; FileError where PATH or `latest` is not there.
std::optional<Candidates> resume_candidates(const Config& config);

/// Throws ConfigError where a run that starts afresh would save among another run's checkpoints.
void check_fresh_folder(const Config& config, const std::filesystem::path& folder);

/// The first problem among a rank's share of a checkpoint's files: DataError's or FileError's text,
/// with its exit code; empty text where there is none.
struct Problem {
  std::string text;
  ExitCode code = ExitCode::data;
};
Problem verify_share(const std::filesystem::path& checkpoint, int rank, int n_ranks);

/// Holds a checkpoint against the run that is to go on from it. Throws ConfigError naming a field
/// of the model that its config.yaml has otherwise, or a global batch that is another one;
/// DataError where its tensors are of another model. Returns what else differs and changes numbers,
/// as "training.lr 0.001 -> 0.01"; files without a config.yaml are held against nothing but
/// tensors.
std::vector<std::string> check_resumable(const CheckpointReader& checkpoint,
                                         const LoadedConfig& loaded, const Settings& settings);

/// The run goes on from the checkpoint: sets settings.first_step, and what the trainer reads.
void resume_from(const std::shared_ptr<const CheckpointReader>& checkpoint, Settings& settings,
                 TrainerInputs& inputs);

}  // namespace llm
