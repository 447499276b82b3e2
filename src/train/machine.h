#pragma once
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace llm {

/// FLOP/s of this machine's matrix products in `dtype` on one thread, or on this process's device,
/// measured for about 30 ms with the products that training uses: what "% of peak" refers to.
double measure_matmul_flops(Dtype dtype, Device device = Device::cpu);

/// Of this machine.
std::int64_t machine_memory_bytes();

}  // namespace llm
