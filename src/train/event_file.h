#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llm {

/// One record of TensorFlow's files: length, its masked CRC-32C, data, its masked CRC-32C.
std::string tf_record(std::string_view data);

/// A TensorBoard event file of scalars, in the form that every version of it reads: records that
/// hold protobuf messages `Event`. Each call's numbers are in the file when it returns.
class EventFile {
 public:
  struct Scalar {
    std::string tag;
    double value;  ///< stored as f32
  };

  /// A new file events.out.tfevents.<seconds>.<host>.<pid> in `folder`. What older files of the
  /// folder say of `first_step` and later counts no more: a run that goes on from a checkpoint does
  /// these steps again. Throws FileError.
  EventFile(const std::filesystem::path& folder, std::int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::string& path() const { return path_; }
  void add(std::int64_t step, const std::vector<Scalar>& scalars);

 private:
  void write(const std::string& event);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace llm
