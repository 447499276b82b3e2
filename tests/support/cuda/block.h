#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace llm::emulator {

/// As CUDA's dim3.
struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  unsigned count() const { return x * y * z; }
};
struct Index3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

constexpr unsigned warp_size = 32;

struct Launch {
  Dim3 grid;
  Dim3 block;
  std::size_t shared_bytes = 0;
  std::function<void()> kernel;
};

/// Runs a grid on the calling thread: its blocks one after the other in an order drawn from `seed`,
/// a block's threads as fibers that run from one meeting (a barrier, a shuffle) to the next in a
/// drawn order, in some blocks a warp far ahead of the others. So what depends on an order that
/// CUDA does not promise differs from seed to seed. Shared memory begins with every byte 0xFF.
/// Throws EmulatorError for what is undefined: threads of a block at different meetings, or some of
/// them at none.
void run_grid(const Launch& launch, std::uint64_t seed);

/// Of the thread that runs; the kernel's built-in variables.
struct ThreadPlace {
  Index3 thread;
  Index3 block;
  Dim3 block_size;
  Dim3 grid_size;
};
extern ThreadPlace here;

/// Meetings. `what` says where, in errors; lanes of `mask` have to come.
void meet_block(const char* what);
void meet_warp(const char* what, std::uint32_t mask);
/// Every lane gives a value and then reads that of `lane`: its own where that is not of the mask.
std::uint64_t exchange(const char* what, std::uint32_t mask, std::uint64_t value, unsigned lane);
/// Bit i: whether lane i gave true.
std::uint32_t vote(const char* what, std::uint32_t mask, bool value);
unsigned lane();
std::byte* dynamic_shared();

}  // namespace llm::emulator
