#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace llm {

/// A file of a checkpoint, as it was written.
struct FileRecord {
  std::string name;
  std::int64_t n_bytes = 0;
  std::uint32_t crc32 = 0;
  bool operator==(const FileRecord&) const = default;
};

/// What a checkpoint says of the run beside its tensors.
struct RunState {
  std::int64_t step = 0;       ///< steps done
  std::int64_t n_updates = 0;  ///< AdamW's t: steps that were not skipped
  std::int64_t n_samples = 0;  ///< consumed: the next step begins with this position
  std::int64_t global_batch = 0;
  double loss_scale = 1;
  std::int64_t n_good_steps = 0;  ///< since the loss scale's last change
  std::string data;               ///< SampleSource::state() before the next step's samples
  std::string layout;             ///< of the run that saved, for people
  std::optional<double> validation_loss = {};  ///< of these weights, where it was computed
  bool operator==(const RunState&) const = default;
};

enum class CheckpointKind : std::uint8_t {
  full,     ///< model.safetensors (a Hugging Face folder) and optimizer.safetensors
  sharded,  ///< rank-NNNNN.safetensors: each rank its part
};

/// manifest.json of a checkpoint: written last, so that what it names is whole.
struct Manifest {
  CheckpointKind kind = CheckpointKind::full;
  RunState run;
  std::vector<FileRecord> files;
  bool operator==(const Manifest&) const = default;
};

inline constexpr const char* manifest_name = "manifest.json";

/// One JSON object in one line; its last key is the CRC-32 of everything before that key.
std::string to_json(const Manifest& manifest);
/// Throws DataError naming `file` where a single bit is not as it was written, or where the version
/// is another one.
Manifest manifest_from_json(const std::string& file, const std::string& text);

/// Reads folder/manifest.json. Throws FileError or DataError.
Manifest read_manifest(const std::filesystem::path& folder);

const char* name_of(CheckpointKind kind);

}  // namespace llm
