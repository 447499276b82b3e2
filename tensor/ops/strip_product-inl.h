// Products of a few rows for attention: the library's fixed cost a call is as large as the work of
// a head of 64 columns, and a strip of six rows ends at its own last key instead of a block's.
#if defined(LLM_TENSOR_OPS_STRIP_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLM_TENSOR_OPS_STRIP_PRODUCT_INL_H_
#undef LLM_TENSOR_OPS_STRIP_PRODUCT_INL_H_
#else
#define LLM_TENSOR_OPS_STRIP_PRODUCT_INL_H_
#endif

#include "tensor/ops/lanes-inl.h"
#include "tensor/ops/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

/// Rows of one strip: 6 x 64 sums, 4 columns of b and one factor fill the 32 registers of AVX-512.
inline constexpr std::int64_t strip_rows = 6;
/// b may come in panels of this many columns.
inline constexpr std::int64_t panel_width = 64;

inline std::int64_t panels(std::int64_t n) {
  return (n + panel_width - 1) / panel_width;
}

/// c (n_rows, width) = (or +=) a (n_rows, depth) b (depth, width); each element is one chain of
/// multiply-adds in order of depth, whatever the registers. Of pairs, depth counts pairs.
///   a[r * a_row + k * a_depth]   b[column / 64 * b_panel + k * b_depth + column % 64]
struct StripProduct {
  std::int64_t n_rows;  ///< at most strip_rows
  std::int64_t width;
  std::int64_t depth;
  const float* a;
  std::int64_t a_row;
  std::int64_t a_depth;
  const float* b;
  std::int64_t b_depth;
  std::int64_t b_panel;
  float* c;
  std::int64_t c_row;
};

/// What an element of a and b holds: a number, or two of bf16 that lie side by side, terms 2 k and
/// 2 k + 1 of a sum, moved as one f32. Pairs are for CPUs with AVX512_BF16 alone.
enum class Terms : std::uint8_t { numbers, pairs };

template <Terms terms>
LANES_INLINE Lanes add_products(const Lanes& a, const Lanes& b, Lanes sum) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (terms == Terms::pairs) {
    // Highway has no name for it yet.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.part[0].raw) : "v"(a.part[0].raw), "v"(b.part[0].raw));
    return sum;
  }
#endif
  return multiply_add(a, b, sum);
}

/// 16 * n_columns columns from `column` on; with one, only the first `left` of them.
template <Terms terms, int n_rows, int n_columns>
LANES_INLINE void strip_tile(const StripProduct& p, std::int64_t column, std::int64_t left,
                             bool add) {
  Lanes sums[n_rows][n_columns];
  for (auto& row : sums) {
    for (Lanes& sum : row) sum = broadcast(0);
  }
  const float* b = p.b + column / panel_width * p.b_panel + column % panel_width;
  const float* a = p.a;
  for (std::int64_t k = 0; k < p.depth; ++k) {
    Lanes b_k[n_columns];
    for (int c = 0; c < n_columns; ++c) {
      b_k[c] = n_columns > 1 ? load(b + c * n_lanes) : load(b, left);
    }
    for (int r = 0; r < n_rows; ++r) {
      const Lanes factor = broadcast(a[r * p.a_row]);
      for (int c = 0; c < n_columns; ++c)
        sums[r][c] = add_products<terms>(factor, b_k[c], sums[r][c]);
    }
    a += p.a_depth;
    b += p.b_depth;
  }
  for (int r = 0; r < n_rows; ++r) {
    for (int c = 0; c < n_columns; ++c) {
      float* into = p.c + r * p.c_row + column + c * n_lanes;
      const std::int64_t n = n_columns > 1 ? n_lanes : left;
      store(add ? load(into, n) + sums[r][c] : sums[r][c], into, n);
    }
  }
}

template <Terms terms, int n_rows>
void strip_of(const StripProduct& p, bool add) {
  // 16 registers of AVX2 hold the sums of 16 columns, 32 of AVX-512 those of 64.
  constexpr int n_columns = n_registers == 1 ? 4 : 1;
  std::int64_t column = 0;
  if constexpr (n_columns > 1) {
    for (; column + n_columns * n_lanes <= p.width; column += n_columns * n_lanes) {
      strip_tile<terms, n_rows, n_columns>(p, column, n_lanes, add);
    }
    for (; column + 2 * n_lanes <= p.width; column += 2 * n_lanes) {
      strip_tile<terms, n_rows, 2>(p, column, n_lanes, add);
    }
  }
  for (; column + n_lanes <= p.width; column += n_lanes) {
    strip_tile<terms, n_rows, 1>(p, column, n_lanes, add);
  }
  if (column < p.width) strip_tile<terms, n_rows, 1>(p, column, p.width - column, add);
}

template <Terms terms = Terms::numbers>
void strip_product(const StripProduct& p, bool add) {
  switch (p.n_rows) {
    case 1:
      return strip_of<terms, 1>(p, add);
    case 2:
      return strip_of<terms, 2>(p, add);
    case 3:
      return strip_of<terms, 3>(p, add);
    case 4:
      return strip_of<terms, 4>(p, add);
    case 5:
      return strip_of<terms, 5>(p, add);
    default:
      return strip_of<terms, 6>(p, add);
  }
}

/// The transpose of x (n_rows, depth), rows `stride` apart, in panels of 64 columns: column t of
/// the transpose is row t of x. The last panel is padded with zeros.
inline void pack_transposed(const float* x, std::int64_t stride, std::int64_t n_rows,
                            std::int64_t depth, float* panel) {
  for (std::int64_t begin = 0; begin < n_rows; begin += panel_width) {
    const std::int64_t n = n_rows - begin < panel_width ? n_rows - begin : panel_width;
    transpose(x + begin * stride, stride, n, depth, panel, panel_width);
    for (std::int64_t k = 0; k < depth && n < panel_width; ++k) {
      for (std::int64_t t = n; t < panel_width; ++t) panel[k * panel_width + t] = 0;
    }
    panel += depth * panel_width;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#endif
