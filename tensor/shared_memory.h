#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace llm {

/// Names memory of a process to the others of its machine. Travels in a message as it is.
struct SharedHandle {
  std::int32_t process = 0;
  std::int32_t file = -1;  ///< of that process
  std::int64_t n_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<SharedHandle>);

/// Bytes that several processes of one machine see; page-aligned. They live as long as anyone maps
/// them, and without a name in a file system: nothing is left behind however the processes end.
/// Who writes when is for the processes to agree on. Move-only.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Zero-filled memory of this process. Throws OutOfMemory.
  explicit SharedMemory(std::int64_t n_bytes);
  /// The memory that another process (or this one) named, while that process holds it. Throws
  /// FileError with the system's reason where this process may not see it.
  explicit SharedMemory(const SharedHandle& handle);

  /// For others. Of memory that is this process's own.
  SharedHandle handle() const;
  std::byte* bytes() const { return bytes_.get(); }
  std::int64_t n_bytes() const { return n_bytes_; }

 private:
  struct Unmap {
    std::size_t n_bytes;  // value-initialized, as Storage's
    void operator()(std::byte* bytes) const;
  };
  class File {
   public:
    explicit File(int descriptor = -1) : descriptor_(descriptor) {}
    File(File&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    File& operator=(File&& other) noexcept {
      std::swap(descriptor_, other.descriptor_);
      return *this;
    }
    ~File();
    int descriptor() const { return descriptor_; }

   private:
    int descriptor_;
  };
  void map();

  File file_;
  std::unique_ptr<std::byte, Unmap> bytes_;
  std::int64_t n_bytes_ = 0;
};

}  // namespace llm
