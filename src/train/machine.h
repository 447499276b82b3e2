#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace llm {

/// FLOP/s of this machine's matrix products in `dtype` on one thread, measured for about 30 ms with
/// the products that training uses: what "% of peak" refers to.
double measure_matmul_flops(Dtype dtype);

/// Of this machine.
std::int64_t machine_memory_bytes();

}  // namespace llm
