#include "src/train/machine.h"

#include <algorithm>
#include <vector>

#include "src/rt/clock.h"
#include "tensor/ops/matmul.h"

namespace llm {

double measure_matmul_flops() {
  constexpr std::int64_t n =
      768;  // fits the L2 cache in parts, large enough for the library's best kernel
  std::vector<float> a(n * n, 1.0f);
  std::vector<float> b(n * n, 0.5f);
  std::vector<float> c(n * n);
  const Matmul product{false, true, n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n};
  matmul(product);  // code generation and first touch
  constexpr std::int64_t budget_ns = 30'000'000;
  double best = 0;
  const std::int64_t begin_ns = now_ns();
  while (now_ns() - begin_ns < budget_ns) {
    const std::int64_t at_ns = now_ns();
    matmul(product);
    best = std::max(best, 2.0 * n * n * n / (static_cast<double>(now_ns() - at_ns) * 1e-9));
  }
  return best;
}

}  // namespace llm
