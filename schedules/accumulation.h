#pragma once
#include <vector>

namespace llm {

/// What happens to the gradient of one microbatch: it is written to gradient buffer `buffer`, and
/// then `n_additions` times the last buffer in use is added into the one before it and is free
/// again.
struct AccumulationStep {
  int buffer;
  int n_additions;
  bool operator==(const AccumulationStep&) const = default;
};

/// The summation tree of a rank's microbatches: sum[a, b) = sum[a, mid) + sum[mid, b) with
/// mid = a + (b - a) / 2, as steps in microbatch order. Afterwards the sum is in buffer 0.
std::vector<AccumulationStep> accumulation_tree(int n_microbatches);

/// Most buffers in use at once: ceil(log2(n_microbatches)) + 1.
int n_accumulation_buffers(const std::vector<AccumulationStep>& steps);

}  // namespace llm
