#pragma once

namespace llm {

/// FLOP/s of this machine's fp32 matrix products on one thread, measured for about 30 ms with the
/// products that training uses: what "% of peak" refers to.
double measure_matmul_flops();

}  // namespace llm
