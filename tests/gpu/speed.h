#pragma once
#include <cstdint>
#include <functional>

#include "tensor/queue.h"

namespace llm::gpu {

/// Seconds of one run of `op` on the device's clock: the mean of n_runs that follow each other,
/// after a few that are not counted where there are more than one.
double device_seconds(const std::function<void(Queue&)>& op, int n_runs);

/// Floating-point operations in a second of the product of two (n, n) matrices of bf16.
double product_flops_per_second(std::int64_t n);

}  // namespace llm::gpu
