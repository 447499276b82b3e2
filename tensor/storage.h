#pragma once
#include <cstdint>
#include <memory>

#include "tensor/shared_memory.h"
#include "tensor/view.h"

namespace llm {

/// Bytes that all Storages of this process were asked for on a device and still hold: what --plan's
/// memory is held against.
std::int64_t storage_bytes_in_use(Device device = Device::cpu);

/// Owns bytes on a device, aligned to 64; zero-filled. Move-only. Memory of a device outlives the
/// queues that work in it, or these have ended their work (Queue::drop).
class Storage {
 public:
  Storage() = default;
  /// Throws OutOfMemory when there is none.
  explicit Storage(std::int64_t n_bytes, Device device = Device::cpu);
  /// The same in memory that other processes of this machine can map by `handle()`.
  static Storage shared(std::int64_t n_bytes);
  /// On the CPU, where a device can copy from and to it while both work; not zero-filled. Without
  /// the module of CUDA it is any memory.
  static Storage pinned(std::int64_t n_bytes);
  /// Of a shared storage.
  SharedHandle handle() const { return shared_.handle(); }
  std::int64_t n_bytes() const { return n_bytes_; }
  Device device() const { return device_; }
  /// Gives the whole pages within these bytes back to the system: they read as zero from now on,
  /// and take memory again when they are written. The rest stays as it is. On a device nothing
  /// happens.
  void discard(std::int64_t byte_begin, std::int64_t n_bytes) const;
  /// Elements from `byte_begin` on, which must be aligned for `dtype` and lie inside.
  MutView view(Dtype dtype, Shape shape, std::int64_t byte_begin = 0) const;

 private:
  enum class Kind : std::uint8_t { own, shared, pinned, cuda };
  struct Free {
    std::int64_t n_bytes;  // value-initialized; g++ 12 takes no default inside an unfinished class
    Kind kind;             // shared: the bytes are shared_'s
    void operator()(void* bytes) const;
  };
  void allocate_on_device();
  SharedMemory shared_;
  std::unique_ptr<void, Free> bytes_;
  std::int64_t n_bytes_ = 0;
  Device device_ = Device::cpu;
};

/// Hands out parts of one Storage front to back; `release_to` gives back everything after a mark.
/// Parts are aligned to 64 bytes. Memory of one microbatch's activations, and scratch of one layer.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::int64_t n_bytes, Device device = Device::cpu) : storage_(n_bytes, device) {}
  /// Throws ContractBroken when the planned size is too small (a bug in the plan).
  MutView take(Dtype dtype, Shape shape);
  std::int64_t mark() const { return used_bytes_; }
  void release_to(std::int64_t mark) { used_bytes_ = mark; }
  std::int64_t peak_bytes() const { return peak_bytes_; }
  std::int64_t n_bytes() const { return storage_.n_bytes(); }
  /// What `take` uses for a tensor: its bytes, rounded up to the alignment.
  static std::int64_t bytes_for(Dtype dtype, const Shape& shape);

 private:
  Storage storage_;
  std::int64_t used_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace llm
