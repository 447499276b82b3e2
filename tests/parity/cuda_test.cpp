// Whole training runs on an emulated device: within rounding of the CPU's, and the same bits
// whatever the device's timing and the layout.
#include <catch2/catch.hpp>
#include <string>

#include "tests/cuda/emulated_module.h"
#include "tests/parity/check_same.h"
#include "tests/parity/world.h"

namespace llm {
namespace {

Outcome run_on_device(Settings settings, std::uint64_t seed) {
  settings.device = Device::cuda;
  const test::EmulatedModule emulated(seed);
  return run_world(settings, seed, 20);
}

TEST_CASE("on a device: a rank's training agrees with the CPU's") {
  for (const ModelConfig& model : {parity_gpt2(0.1f), parity_llama(0.1f)}) {
    const Settings settings = parity_settings(model, 1, {2, 1}, 2, 3);
    const Outcome on_cpu = run_world(settings, 1, 20);
    const Outcome on_device = run_on_device(settings, 1);
    check_near(on_device, on_cpu);
    check_same(run_on_device(settings, 2), on_device);
  }
}

}  // namespace
}  // namespace llm
