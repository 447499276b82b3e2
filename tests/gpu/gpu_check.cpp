// The check of a machine with a GPU: gpu_check device|kernels|parity|speed|train [--small]
// prints a table, and exits with 1 where a figure is outside its limit, with 77 and one line where
// no device can be used. tests/gpu/check.sh runs all of it.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "tensor/cuda/module.h"
#include "tensor/cuda/open_module.h"
#include "tests/gpu/report.h"

namespace {

using namespace llm;

constexpr int usage_code = 64;
constexpr int skip_code = 77;

void describe_device(const gpu::Options&, gpu::Report& report) {
  const cuda::DeviceFacts facts = cuda::module().runtime.facts(0);
  report.note(fmt::format("device: {}, compute capability {}.{}, {:.1f} of {:.1f} GiB free",
                          facts.name, facts.capability / 10, facts.capability % 10,
                          static_cast<double>(facts.free_bytes) / (1 << 30),
                          static_cast<double>(facts.n_bytes) / (1 << 30)));
}

using Check = void (*)(const gpu::Options&, gpu::Report&);
const std::map<std::string, Check> checks{{"device", describe_device},
                                          {"kernels", gpu::check_kernels},
                                          {"parity", gpu::check_parity},
                                          {"speed", gpu::check_speed},
                                          {"train", gpu::check_training}};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const std::string option = argc > 2 ? argv[2] : "";
  if (argc > 3 || !checks.contains(name) || (!option.empty() && option != "--small")) {
    fmt::print(stderr, "usage: gpu_check device|kernels|parity|speed|train [--small]\n");
    return usage_code;
  }
  try {
    const std::string reason = cuda::open_module();
    if (!reason.empty()) {
      fmt::print("gpu_check: {}\n", reason);
      return skip_code;
    }
    cuda::module().runtime.select(0);
    gpu::Report report;
    checks.at(name)({.is_small = option == "--small"}, report);
    cuda::module().runtime.close();
    return report.n_failed() == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print("gpu_check {}: {} FAILED\n", name, error.what());
    return 1;
  }
}
