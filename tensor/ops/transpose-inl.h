// The transpose of a matrix of any dtype into f32, in blocks of 4 rows and 16 columns.
#if defined(LLM_TENSOR_OPS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLM_TENSOR_OPS_TRANSPOSE_INL_H_
#undef LLM_TENSOR_OPS_TRANSPOSE_INL_H_
#else
#define LLM_TENSOR_OPS_TRANSPOSE_INL_H_
#endif

#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

/// out[c * out_stride + r] = x[r * stride + c] for 4 rows and 16 columns.
template <typename T>
LANES_INLINE void transpose_block(const T* x, std::int64_t stride, float* out,
                                  std::int64_t out_stride) {
  const hn::Repartition<double, RegisterTag> pairs;
  const Lanes row[4] = {load(x), load(x + stride), load(x + 2 * stride), load(x + 3 * stride)};
  // A register's blocks of 128 bits each turn 4 x 4 numbers: block b of turned[j] is column 4 b +
  // j.
  alignas(64) float turned[4][n_lanes];
  for (int p = 0; p < n_registers; ++p) {
    const auto low_01 =
        hn::BitCast(pairs, hn::InterleaveLower(register_tag, row[0].part[p], row[1].part[p]));
    const auto low_23 =
        hn::BitCast(pairs, hn::InterleaveLower(register_tag, row[2].part[p], row[3].part[p]));
    const auto high_01 =
        hn::BitCast(pairs, hn::InterleaveUpper(register_tag, row[0].part[p], row[1].part[p]));
    const auto high_23 =
        hn::BitCast(pairs, hn::InterleaveUpper(register_tag, row[2].part[p], row[3].part[p]));
    const int at = p * register_lanes;
    hn::StoreU(hn::BitCast(register_tag, hn::InterleaveLower(pairs, low_01, low_23)), register_tag,
               turned[0] + at);
    hn::StoreU(hn::BitCast(register_tag, hn::InterleaveUpper(pairs, low_01, low_23)), register_tag,
               turned[1] + at);
    hn::StoreU(hn::BitCast(register_tag, hn::InterleaveLower(pairs, high_01, high_23)),
               register_tag, turned[2] + at);
    hn::StoreU(hn::BitCast(register_tag, hn::InterleaveUpper(pairs, high_01, high_23)),
               register_tag, turned[3] + at);
  }
  for (std::int64_t c = 0; c < n_lanes; ++c) {
    std::memcpy(out + c * out_stride, turned[c % 4] + c / 4 * 4, 4 * sizeof(float));
  }
}

/// out[c * out_stride + r] = x[r * stride + c]
template <typename T>
void transpose(const T* x, std::int64_t stride, std::int64_t n_rows, std::int64_t n_columns,
               float* out, std::int64_t out_stride) {
  const std::int64_t block_rows = n_rows / 4 * 4;
  const std::int64_t block_columns = n_columns / n_lanes * n_lanes;
  for (std::int64_t c = 0; c < block_columns; c += n_lanes) {
    for (std::int64_t r = 0; r < block_rows; r += 4) {
      transpose_block(x + r * stride + c, stride, out + c * out_stride + r, out_stride);
    }
  }
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for (std::int64_t c = r < block_rows ? block_columns : 0; c < n_columns; ++c) {
      out[c * out_stride + r] = to_float(x[r * stride + c]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#endif
