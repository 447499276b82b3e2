#include "src/data/file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace llm {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  const int error = errno;
  throw FileError(fmt::format("{}: cannot {}: {}", path, what, std::strerror(error)));
}

void write_all(int descriptor, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) fail(path, "open");
  // Opening a pipe would wait for its writer.
  if (!S_ISREG(status.st_mode)) throw FileError(path + ": is not a regular file");
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path, "open");
  n_bytes_ = status.st_size;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      n_bytes_(other.n_bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(n_bytes_, other.n_bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(descriptor_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "read");
    if (n == 0) {
      throw FileError(fmt::format("{}: ends at byte {}; it had {} bytes when it was opened", path_,
                                  offset, n_bytes_));
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(path, "create");
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_all(descriptor_, path_, bytes);
}

void OutputFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0) fail(path_, "write to disk");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close");
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open");
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  // Some network file systems cannot sync a folder, and say so with EINVAL.
  if (result != 0 && error != EINVAL) fail(path, "write to disk");
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::string beside = fmt::format("{}.tmp-{}", path, ::getpid());
  OutputFile file(beside);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  if (::rename(beside.c_str(), path.c_str()) != 0) fail(path, "rename to");
  const std::size_t slash = path.rfind('/');
  sync_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.n_bytes()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace llm
