#include "src/train/machine.h"

#include <unistd.h>

#include <algorithm>

#include "src/rt/clock.h"
#include "tensor/ops/linear.h"
#include "tensor/storage.h"

namespace llm {

std::int64_t machine_memory_bytes() {
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

double measure_matmul_flops(Dtype dtype) {
  constexpr std::int64_t n =
      768;  // parts of it fit the caches, and it has the library's best kernel
  const Shape shape{n, n};
  const auto n_bytes = n * n * static_cast<std::int64_t>(size_of(dtype));
  const Storage x(n_bytes);
  const Storage weight(n_bytes);
  const Storage y(n_bytes);
  Queue queue;
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
    best = std::max(best, 2.0 * n * n * n / (static_cast<double>(ns) * 1e-9));
    spent_ns += ns;
  }
  return best;
}

}  // namespace llm
