#include "tensor/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "src/base/error.h"
#include "tensor/cuda/module.h"

namespace llm {
namespace {
constexpr std::int64_t alignment = 64;  // one cache line, one AVX-512 register
// Faults and misses of the address cache are fewer by 512 on these.
constexpr std::int64_t huge_page = 2 << 20;
std::int64_t rounded(std::int64_t n_bytes) {
  return (n_bytes + alignment - 1) / alignment * alignment;
}
std::atomic<std::int64_t> bytes_in_use{0};
std::atomic<std::int64_t> device_bytes_in_use{0};
}  // namespace

std::int64_t storage_bytes_in_use(Device device) {
  return device == Device::cpu ? bytes_in_use.load() : device_bytes_in_use.load();
}

void Storage::Free::operator()(void* bytes) const {
  (kind == Kind::cuda ? device_bytes_in_use : bytes_in_use) -= n_bytes;
  switch (kind) {
    case Kind::own:
      return std::free(bytes);
    case Kind::pinned:
      return cuda::module().runtime.release_pinned(bytes);
    case Kind::cuda:
      return cuda::module().runtime.release(bytes);
    case Kind::shared:
      return;
  }
}

Storage::Storage(std::int64_t n_bytes, Device device) : n_bytes_(n_bytes), device_(device) {
  CHECK_CONTRACT(n_bytes >= 0, "a storage has a size");
  if (device == Device::cuda) {
    allocate_on_device();
    return;
  }
  const std::int64_t size = std::max(rounded(n_bytes), alignment);
  const std::int64_t boundary = size < 4 * huge_page ? alignment : huge_page;
  // Unlike aligned_alloc, for sizes that are no multiple of the boundary.
  void* bytes = nullptr;
  if (posix_memalign(&bytes, static_cast<std::size_t>(boundary), static_cast<std::size_t>(size))) {
    throw OutOfMemory(size);
  }
  bytes_ = {bytes, Free{n_bytes, Kind::own}};
  // Whole pages only, so that no memory is held but what was asked for. A kernel without them
  // refuses, which changes nothing.
  if (boundary == huge_page) {
    madvise(bytes_.get(), static_cast<std::size_t>(size / huge_page * huge_page), MADV_HUGEPAGE);
  }
  bytes_in_use += n_bytes;
  std::memset(bytes_.get(), 0, static_cast<std::size_t>(size));
}

void Storage::allocate_on_device() {
  bytes_ = {cuda::module().runtime.allocate(n_bytes_), Free{n_bytes_, Kind::cuda}};
  device_bytes_in_use += n_bytes_;
}

Storage Storage::pinned(std::int64_t n_bytes) {
  if (!cuda::has_module()) return Storage(n_bytes);
  Storage storage;
  storage.bytes_ = {cuda::module().runtime.allocate_pinned(n_bytes), Free{n_bytes, Kind::pinned}};
  storage.n_bytes_ = n_bytes;
  bytes_in_use += n_bytes;
  return storage;
}

Storage Storage::shared(std::int64_t n_bytes) {
  Storage storage;
  storage.shared_ = SharedMemory(n_bytes);
  storage.bytes_ = {storage.shared_.bytes(), Free{n_bytes, Kind::shared}};
  storage.n_bytes_ = n_bytes;
  bytes_in_use += n_bytes;
  return storage;
}

void Storage::discard(std::int64_t byte_begin, std::int64_t n_bytes) const {
  CHECK_CONTRACT(byte_begin >= 0 && n_bytes >= 0 && byte_begin + n_bytes <= n_bytes_,
                 "what is discarded lies inside its storage");
  if (device_ == Device::cuda) return;
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin =
      reinterpret_cast<std::uintptr_t>(bytes_.get()) + static_cast<std::uintptr_t>(byte_begin);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + static_cast<std::uintptr_t>(n_bytes)) / page * page;
  if (first >= end) return;
  const bool is_shared = bytes_.get_deleter().kind == Kind::shared;
  madvise(reinterpret_cast<void*>(first), end - first, is_shared ? MADV_REMOVE : MADV_DONTNEED);
}

MutView Storage::view(Dtype dtype, Shape shape, std::int64_t byte_begin) const {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  CHECK_CONTRACT(byte_begin % element == 0, "a view is aligned");
  CHECK_CONTRACT(byte_begin >= 0 && byte_begin + shape.n_elements() * element <= n_bytes_,
                 "a view lies inside its storage");
  return MutView(static_cast<char*>(bytes_.get()) + byte_begin, dtype, shape, device_);
}

std::int64_t Arena::bytes_for(Dtype dtype, const Shape& shape) {
  return rounded(shape.n_elements() * static_cast<std::int64_t>(size_of(dtype)));
}

MutView Arena::take(Dtype dtype, Shape shape) {
  const std::int64_t begin = used_bytes_;
  const std::int64_t n_bytes = bytes_for(dtype, shape);
  CHECK_CONTRACT(begin + n_bytes <= storage_.n_bytes(), "an arena is as large as its plan says");
  used_bytes_ = begin + n_bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return storage_.view(dtype, shape, begin);
}

}  // namespace llm
