// The device of a program that opens the emulated module; LLM_EMULATED_SEED draws its order.
#include <cstdlib>

#include "tests/support/cuda/device.h"

namespace llm::emulator {
namespace {

struct OpenedDevice {
  OpenedDevice() : device(seed(), guards_each) { current_device() = &device; }
  static std::uint64_t seed() {
    const char* const text = std::getenv("LLM_EMULATED_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }
  static constexpr int guards_each = 16;
  Device device;
};
OpenedDevice opened;

}  // namespace
}  // namespace llm::emulator
