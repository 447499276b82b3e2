#include "src/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw FileError(fmt::format("{} {}: {}", what, path.string(), std::strerror(errno)));
}

/// Removes a half-written file unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& final_path)
      : path_(fmt::format("{}.tmp-{}", final_path.string(), ::getpid())) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) ::unlink(path_.c_str());
  }
  const std::filesystem::path& path() const { return path_; }
  void rename_to(const std::filesystem::path& final_path) {
    if (::rename(path_.c_str(), final_path.c_str()) != 0) fail("cannot rename to", final_path);
    renamed_ = true;
  }

 private:
  std::filesystem::path path_;
  bool renamed_ = false;
};

}  // namespace

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open folder", folder);
  const int result = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  // Some file systems cannot force a folder; the rename stands all the same.
  if (result != 0 && reason != EINVAL && reason != ENOTSUP) {
    errno = reason;
    fail("cannot force to disk folder", folder);
  }
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe that nobody writes to must not wait.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail("cannot open", path_);
  struct stat status{};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const int reason = errno;
    ::close(descriptor_);
    errno = reason;
    if (!known) fail("cannot read", path_);
    throw FileError(fmt::format("cannot read {}: it is not a regular file", path_.string()));
  }
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

void InputFile::read(std::int64_t begin, std::int64_t n, void* out) const {
  CHECK_CONTRACT(begin >= 0 && n >= 0, "a place in a file is not negative");
  auto* bytes = static_cast<char*>(out);
  while (n > 0) {
    const ssize_t got = ::pread(descriptor_, bytes, static_cast<std::size_t>(n), begin);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read", path_);
    if (got == 0) {
      throw FileError(
          fmt::format("{} ends {} bytes early, at byte {}: was it cut while being read?",
                      path_.string(), n, begin));
    }
    bytes += got;
    begin += got;
    n -= got;
  }
}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("cannot create", path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::append(const void* bytes, std::size_t n) {
  const auto* next = static_cast<const char*>(bytes);
  while (n > 0) {
    const ssize_t written = ::write(descriptor_, next, n);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write", path_);
    next += written;
    n -= static_cast<std::size_t>(written);
  }
}

void OutputFile::write_at(std::int64_t begin, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), begin);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    begin += written;
  }
}

void OutputFile::begin_writing_back() {
  // Where the system cannot, finish() does it all.
  (void)::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0) fail("cannot force to disk", path_);
  // Network file systems report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot close", path_);
}

void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(OutputFile&)>& write) {
  TemporaryFile temporary(path);
  OutputFile file(temporary.path());
  write(file);
  file.finish();
  temporary.rename_to(path);
  const std::filesystem::path folder = path.parent_path();
  sync_folder(folder.empty() ? "." : folder);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  write_file_atomically(path, [text](OutputFile& file) { file.append(text); });
}

std::string read_file(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.n_bytes()), '\0');
  file.read(0, file.n_bytes(), text.data());
  return text;
}

}  // namespace llm
