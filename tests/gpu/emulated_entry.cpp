// What makes an emulated device the one that the module finds, from the moment it is opened on.
#include <memory>

#include "tests/support/cuda/device.h"

namespace {

constexpr int guards_each = 256;  // of a process that checks figures, not who touches memory

/// Outlives all that is on it: it goes with the process.
const bool is_there = [] {
  llm::emulator::current_device() =
      std::make_unique<llm::emulator::Device>(1, guards_each).release();
  return true;
}();

}  // namespace
