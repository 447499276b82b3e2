#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace llm {

/// A regular file open for reading by position. Throws FileError naming the path and the system's
/// reason; a folder, pipe or device is refused before it is opened.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();
  const std::string& path() const { return path_; }
  /// When it was opened.
  std::int64_t n_bytes() const { return n_bytes_; }
  /// Fills `out` from byte `offset` on; FileError when the file ends before.
  void read_at(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t n_bytes_ = 0;
};

/// A file written front to back. `finish` must be called: it reports what a destructor could not.
class OutputFile {
 public:
  /// Creates or empties the file.
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(std::span<const std::byte> bytes);
  /// Overwrites bytes that were written already.
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// On disk (fsync) and closed.
  void finish();

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// fsync of a folder: names created, renamed or removed in it are on disk.
void sync_folder(const std::string& path);

/// Replaces the file `path` by `text` as a whole: written beside it, fsync, renamed, folder fsync.
void write_file_atomically(const std::string& path, const std::string& text);

/// The whole file.
std::string read_file(const std::string& path);

}  // namespace llm
