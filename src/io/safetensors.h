#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/file.h"
#include "src/base/range.h"
#include "tensor/dtype.h"

namespace llm {

/// One tensor of a safetensors file (format: huggingface/safetensors, README). Row-major, little
/// endian. Element types that this program does not compute with are refused by name; BOOL counts
/// as u8.
struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;
  Range bytes;  ///< in the file
  std::int64_t n_elements() const {
    return bytes.size() / static_cast<std::int64_t>(size_of(dtype));
  }
};

/// What the header of a file says, after every check of it.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// Reads a header strictly: `text` is the JSON, `data_begin` the file's byte after it,
/// `n_file_bytes` the file's size. Throws DataError naming `file` for anything that the format
/// forbids: malformed or nested JSON, duplicate names or keys, unknown element types or keys,
/// extents that are not natural numbers or overflow, ranges that do not match the shape, gaps,
/// overlaps, trailing or missing bytes.
SafetensorsHeader parse_safetensors_header(const std::string& file, const std::string& text,
                                           std::int64_t data_begin, std::int64_t n_file_bytes);

/// An opened file whose header has passed every check; nothing of its size was allocated before.
class SafetensorsFile {
 public:
  /// Throws FileError when it cannot be read, DataError when it is malformed.
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Throws DataError naming the file and the tensor when it is not there.
  const SafetensorsEntry& find(const std::string& name) const;
  bool contains(const std::string& name) const { return index_.contains(name); }
  /// Elements [elements.begin, elements.end) of a tensor, as they lie in the file.
  void read(const SafetensorsEntry& entry, Range elements, void* out) const;
  /// The same as f32, which is exact, from F32, BF16 or F16. Throws DataError where the file holds
  /// another element type. Memory: none but `out` and half a megabyte.
  void read_f32(const SafetensorsEntry& entry, Range elements, float* out) const;
  /// A whole tensor.
  std::vector<float> read_f32(const std::string& name) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;  // by name: of header_.tensors
};

/// "F32", "BF16", ...: the format's name of an element type.
const char* safetensors_name(Dtype dtype);

/// A tensor to be written: `fill` is called once, with exactly its bytes to be filled.
struct SafetensorsOutput {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;
  std::function<void(std::span<std::byte>)> fill;
};

/// The bytes before the tensors' own, which then follow in the order given: the header's length,
/// and the header padded with spaces to 8 bytes, metadata {"format": "pt"}.
std::string safetensors_head(const std::vector<SafetensorsOutput>& tensors);

/// Writes one file atomically, metadata {"format": "pt"}: tensors by falling element size, then by
/// name; the header padded with spaces to 8 bytes. Memory: one tensor at a time.
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsOutput> tensors);

}  // namespace llm
