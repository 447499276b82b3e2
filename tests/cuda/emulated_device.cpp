// The device of a program that opens the emulated module. LLM_EMULATED_SEED draws its order,
// LLM_EMULATED_BYTES is its memory, and LLM_EMULATED_CAPABILITIES says what each rank's device is
// capable of ("80 90").
#include <cstdlib>
#include <sstream>

#include "tests/support/cuda/device.h"

namespace llm::emulator {
namespace {

struct OpenedDevice {
  OpenedDevice() : device(seed(), guards_each) {
    current_device() = &device;
    if (const char* const bytes = std::getenv("LLM_EMULATED_BYTES")) {
      device.limit_bytes = std::strtoull(bytes, nullptr, 10);
    }
    const char* const capabilities = std::getenv("LLM_EMULATED_CAPABILITIES");
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (capabilities == nullptr || rank == nullptr) return;
    std::istringstream each(capabilities);
    for (int i = 0; i <= std::atoi(rank); ++i) each >> device.capability;
  }
  static std::uint64_t seed() {
    const char* const text = std::getenv("LLM_EMULATED_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }
  static constexpr int guards_each = 64;
  Device device;
};
OpenedDevice opened;

}  // namespace
}  // namespace llm::emulator
