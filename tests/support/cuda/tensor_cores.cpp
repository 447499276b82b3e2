#include "tests/support/cuda/tensor_cores.h"

#include <cstring>

#include "tensor/ops/rounding.h"
#include "tests/support/cuda/block.h"
#include "tests/support/cuda/error.h"

namespace llm::emulator {
namespace {

constexpr std::uint32_t whole_warp = 0xFFFFFFFFu;
constexpr unsigned most_warps = 32;

/// What each lane of a warp brings to an instruction.
struct Lane {
  std::uint32_t a[4];
  std::uint32_t b[2];
  const void* row;
};
Lane lanes_of[most_warps][warp_size];

Lane* warp() {
  return lanes_of[here.thread.x / warp_size];
}

float half_of(std::uint32_t pair, unsigned upper, bool is_bf16) {
  const auto bits = static_cast<std::uint16_t>(pair >> (16 * upper));
  return is_bf16 ? to_float(Bf16{bits}) : to_float(F16{bits});
}

// "Matrix Fragments for mma.m16n8k16 with floating point type" of the PTX ISA, read backwards:
// which lane has an element, and where.

/// Element (row, k) of a: groupID is row % 8; register by row / 8 and k / 8.
float a_element(const Lane* lanes, unsigned row, unsigned k, bool is_bf16) {
  const unsigned lane = row % 8 * 4 + k % 8 / 2;
  return half_of(lanes[lane].a[row / 8 + 2 * (k / 8)], k % 2, is_bf16);
}
/// Element (k, column) of b: groupID is the column; register by k / 8.
float b_element(const Lane* lanes, unsigned k, unsigned column, bool is_bf16) {
  const unsigned lane = column * 4 + k % 8 / 2;
  return half_of(lanes[lane].b[k / 8], k % 2, is_bf16);
}

}  // namespace

void multiply_tiles(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                    bool is_bf16) {
  Lane* const lanes = warp();
  std::memcpy(lanes[lane()].a, a, sizeof(a));
  std::memcpy(lanes[lane()].b, b, sizeof(b));
  meet_warp("mma", whole_warp);
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane() / 4 + 8 * (i / 2);
    const unsigned column = lane() % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      d[i] += a_element(lanes, row, k, is_bf16) * b_element(lanes, k, column, is_bf16);
    }
  }
  // Nobody brings its next fragments before all have read these.
  meet_warp("mma", whole_warp);
}

void load_matrices(std::uint32_t (&x)[4], const void* row, bool is_transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    throw EmulatorError("ldmatrix is given a row that is not aligned to 16 bytes");
  }
  Lane* const lanes = warp();
  lanes[lane()].row = row;
  meet_warp("ldmatrix", whole_warp);
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t halves[2];
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned r = is_transposed ? lane() % 4 * 2 + i : lane() / 4;
      const unsigned column = is_transposed ? lane() / 4 : lane() % 4 * 2 + i;
      halves[i] = static_cast<const std::uint16_t*>(lanes[8 * matrix + r].row)[column];
    }
    x[matrix] = halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
  }
  meet_warp("ldmatrix", whole_warp);
}

}  // namespace llm::emulator
