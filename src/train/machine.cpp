#include "src/train/machine.h"

#include <unistd.h>

#include <algorithm>

#include "src/rt/clock.h"
#include "tensor/ops/linear.h"
#include "tensor/storage.h"

namespace llm {

namespace {

/// Parts of it fit the caches, and it has the library's best kernel.
constexpr std::int64_t cpu_extent = 768;

/// Of products of (n, n) matrices.
double matmul_flops(Dtype dtype, Device device, std::int64_t n) {
  const Shape shape{n, n};
  const auto n_bytes = n * n * static_cast<std::int64_t>(size_of(dtype));
  const Storage x(n_bytes, device);
  const Storage weight(n_bytes, device);
  const Storage y(n_bytes, device);
  Queue queue(device);
  const auto multiply = [&] {
    const std::int64_t begin_ns = now_ns();
    linear_forward(queue, x.view(dtype, shape), weight.view(dtype, shape), View(),
                   y.view(dtype, shape));
    queue.finish();
    return now_ns() - begin_ns;
  };
  multiply();  // code generation and first touch
  constexpr std::int64_t budget_ns = 30'000'000;
  double best = 0;
  for (std::int64_t spent_ns = 0; spent_ns < budget_ns;) {
    const std::int64_t ns = multiply();
    best = std::max(best, 2.0 * static_cast<double>(n) * static_cast<double>(n * n) /
                              (static_cast<double>(ns) * 1e-9));
    spent_ns += ns;
  }
  return best;
}

}  // namespace

std::int64_t machine_memory_bytes() {
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

double measure_matmul_flops(Dtype dtype, Device device) {
  if (device == Device::cpu) return matmul_flops(dtype, device, cpu_extent);
  // A device needs large products to be busy, and an emulated one is busy with any.
  constexpr std::int64_t least_extent = 128;
  constexpr std::int64_t most_extent = 8192;
  double flops = 0;
  for (std::int64_t n = least_extent; n <= most_extent; n *= 2) {
    flops = std::max(flops, matmul_flops(dtype, device, n));
    const double seconds = 2.0 * static_cast<double>(n) * static_cast<double>(n * n) / flops;
    if (seconds > 1e-3) break;
  }
  return flops;
}

}  // namespace llm
