#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace llm {

/// A regular file opened for reading, read at given places: a file that is cut short while it is
/// read is an error, never a fault. Move-only.
class InputFile {
 public:
  /// Throws FileError naming the path and the system's reason; a folder, pipe or device is refused
  /// without waiting for it.
  explicit InputFile(std::filesystem::path path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();
  const std::filesystem::path& path() const { return path_; }
  std::int64_t n_bytes() const { return n_bytes_; }
  /// Fills `out` with n bytes from `begin` on. Throws FileError where the file has fewer.
  void read(std::int64_t begin, std::int64_t n, void* out) const;
  void read_at(std::int64_t begin, std::span<std::byte> out) const {
    read(begin, static_cast<std::int64_t>(out.size()), out.data());
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t n_bytes_ = 0;
};

/// Bytes to the end of a new file.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  /// Throws FileError naming the path and the reason (a full disk, ...).
  void append(const void* bytes, std::size_t n);
  void append(std::string_view text) { append(text.data(), text.size()); }
  void write(std::span<const std::byte> bytes) { append(bytes.data(), bytes.size()); }
  /// Overwrites bytes that were written already.
  void write_at(std::int64_t begin, std::span<const std::byte> bytes);
  /// Asks the system to write what is here to the disk, without waiting for it: finish() then has
  /// less to wait for, and others' writes do not wait behind this file's.
  void begin_writing_back();
  /// Forces everything to the disk and closes.
  void finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Makes `path` hold what `write` appends, or leaves it as it was: a temporary file beside it is
/// written, forced to the disk and renamed, then the folder is forced too. When `write` throws, or
/// the disk is full, the temporary file is removed and the error goes on. The folder must exist.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(OutputFile&)>& write);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// fsync of a folder: names created, renamed or removed in it are on disk.
void sync_folder(const std::filesystem::path& folder);

/// The whole file.
std::string read_file(const std::filesystem::path& path);

}  // namespace llm
