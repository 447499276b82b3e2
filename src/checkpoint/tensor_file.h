#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/crc32.h"
#include "src/base/file.h"
#include "src/checkpoint/boxes.h"
#include "src/checkpoint/manifest.h"

namespace llm {

/// Called every few megabytes of a save; what it throws ends the save.
using WriteTick = std::function<void()>;

/// A tensor that a file will hold, f32.
struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// Writes a safetensors file tensor by tensor, in the order given to the constructor, and adds up
/// its checksum. Memory: a few megabytes. Throws FileError.
class TensorFile {
 public:
  TensorFile(const std::filesystem::path& path, const std::vector<FileTensor>& tensors,
             WriteTick tick = {});
  /// The next tensor: the box's values, row by row.
  void append(const Box& box, const float* values);
  /// Everything is on disk.
  FileRecord finish();

 private:
  void append(const void* bytes, std::size_t n);

  OutputFile file_;
  FileRecord record_;
  Crc32 sum_;
  WriteTick tick_;
  std::vector<FileTensor> tensors_;
  std::size_t n_written_ = 0;
  std::int64_t n_since_tick_ = 0;
  std::vector<float> rows_;
};

/// The tensors of full files, in the order of parameters() and of their pieces: of
/// model.safetensors the weights, of optimizer.safetensors both moments of each parameter.
std::vector<FileTensor> tensors_of(const ParameterSpec& whole, TensorPart part);

/// A box of a rank's part, and the array that it lies in.
struct BoxValues {
  Box box;
  TensorPart part = TensorPart::weight;
  const float* values = nullptr;
};
/// A rank's file of a sharded checkpoint.
FileRecord write_boxes(const std::filesystem::path& path, const std::vector<BoxValues>& boxes,
                       WriteTick tick = {});

/// A file of text, forced to the disk.
FileRecord write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace llm
