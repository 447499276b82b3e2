#pragma once
#include <cstdint>

namespace llm::emulator {

/// Instructions of a whole warp, with fragments as the PTX ISA lays them over its lanes. All 32
/// lanes come to each.

/// mma.sync.aligned.m16n8k16.row.col.f32.{f16|bf16}.{f16|bf16}.f32: d += a b, terms in order.
void multiply_tiles(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                    bool is_bf16);
/// ldmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16: lane i gives row i % 8 of matrix i / 8, 16
/// bytes at a multiple of 16.
void load_matrices(std::uint32_t (&x)[4], const void* row, bool is_transposed);

}  // namespace llm::emulator
