#include "tensor/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {

std::string path_of(const SharedHandle& handle) {
  return "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
}

[[noreturn]] void refuse(const SharedHandle& handle, const std::string& reason) {
  throw FileError("memory of another rank cannot be mapped: " + path_of(handle) + ": " + reason);
}

/// mmap takes no empty range.
std::size_t mapped_bytes(std::int64_t n_bytes) {
  return static_cast<std::size_t>(std::max<std::int64_t>(n_bytes, 1));
}

}  // namespace

SharedMemory::File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

void SharedMemory::Unmap::operator()(std::byte* bytes) const {
  munmap(bytes, n_bytes);
}

void SharedMemory::map() {
  const std::size_t n = mapped_bytes(n_bytes_);
  void* const bytes = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, file_.descriptor(), 0);
  if (bytes == MAP_FAILED) throw OutOfMemory(n_bytes_);
  bytes_ = {static_cast<std::byte*>(bytes), Unmap{n}};
}

SharedMemory::SharedMemory(std::int64_t n_bytes)
    : file_(memfd_create("llm-train", MFD_CLOEXEC)), n_bytes_(n_bytes) {
  CHECK_CONTRACT(n_bytes >= 0, "memory has a size");
  // A file is given more memory than there is until the system kills someone; private memory that
  // is obviously too much is refused.
  const std::size_t n = mapped_bytes(n_bytes);
  void* const asked = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (asked == MAP_FAILED) throw OutOfMemory(n_bytes);
  munmap(asked, n);
  // Pages that cannot be had are an error here, not a signal at their first use.
  if (file_.descriptor() < 0 ||
      posix_fallocate(file_.descriptor(), 0, static_cast<off_t>(n)) != 0) {
    throw OutOfMemory(n_bytes);
  }
  map();
}

SharedMemory::SharedMemory(const SharedHandle& handle)
    : file_(open(path_of(handle).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)),
      n_bytes_(handle.n_bytes) {
  if (file_.descriptor() < 0) refuse(handle, std::strerror(errno));
  struct stat status{};
  if (fstat(file_.descriptor(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < static_cast<off_t>(mapped_bytes(n_bytes_))) {
    refuse(handle, "it is not the memory of " + std::to_string(n_bytes_) + " bytes expected");
  }
  map();
  file_ = File();
}

SharedHandle SharedMemory::handle() const {
  CHECK_CONTRACT(file_.descriptor() >= 0, "only own memory has a handle");
  return {getpid(), file_.descriptor(), n_bytes_};
}

}  // namespace llm
