#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "src/checkpoint/manifest.h"

namespace llm {

// A folder of checkpoints: step-00000100/, ... A checkpoint is written as step-00000100.tmp and
// gets its name when every byte of it is on disk, so whatever has such a name is whole, at every
// moment of every crash. Names that end in .tmp are leftovers and mean nothing.

/// "step-00000100"
std::string checkpoint_name(std::int64_t step);

/// Makes the folder of a checkpoint that is being written, empty, and returns it. Throws FileError.
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder, std::int64_t step);

/// Writes the manifest, forces it, the names and the rename to disk: afterwards the checkpoint of
/// manifest.run.step is saved. The files that the manifest names are on disk already. One of the
/// same step is replaced; where the file system can, in one operation.
void commit_checkpoint(const std::filesystem::path& folder, const Manifest& manifest);

/// The steps of the folder's checkpoints, ascending; empty where there is no such folder.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);

/// Throws DataError naming the file of a checkpoint that is missing, is shorter or longer, or has
/// another checksum than the manifest says; FileError where it cannot be read.
void verify_file(const std::filesystem::path& checkpoint, const FileRecord& record);
/// Every file; returns the manifest.
Manifest verify_checkpoint(const std::filesystem::path& checkpoint);
/// Sizes alone, which needs no reading.
Manifest verify_sizes(const std::filesystem::path& checkpoint);

struct KeptCheckpoints {
  std::int64_t n_last = 1;
  bool best = false;  ///< also the one of the least validation loss
};
/// Removes what is not kept: a checkpoint loses its name first, then its files. What is damaged
/// (verify_sizes) is neither counted nor removed.
void remove_old_checkpoints(const std::filesystem::path& folder, KeptCheckpoints kept);

/// Removes what interrupted saves and removals have left.
void remove_leftovers(const std::filesystem::path& folder);

/// The least validation loss among the folder's checkpoints; infinity where none has one.
double best_validation_loss(const std::filesystem::path& folder);

}  // namespace llm
