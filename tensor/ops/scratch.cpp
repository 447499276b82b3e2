#include "tensor/ops/scratch.h"

#include <atomic>

namespace llm {
namespace {
std::atomic<std::int64_t> held{0};
std::atomic<std::int64_t> most_held{0};
}  // namespace

std::int64_t op_scratch_bytes() {
  return held.load();
}

std::int64_t op_scratch_peak_bytes() {
  return most_held.load();
}

void restart_op_scratch_peak() {
  most_held = held.load();
}

void count_op_scratch(std::int64_t n_bytes) {
  const std::int64_t now = held += n_bytes;
  std::int64_t most = most_held.load();
  while (now > most && !most_held.compare_exchange_weak(most, now)) {
  }
}

}  // namespace llm
