#include "src/model/init.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "src/base/philox.h"

namespace llm {
namespace {

/// Blocks of four normal numbers made at once: arrays of this length are what compilers turn into
/// vectors, and all of them together stay in the first cache.
constexpr std::size_t n_lanes = 64;
using Lanes = std::array<float, n_lanes>;
using Words = std::array<std::uint32_t, n_lanes>;

/// words[w][i] = word w of philox_at(key, first_block + i).
void philox_lanes(std::uint64_t key, std::uint64_t first_block, std::array<Words, 4>& words) {
  for (std::size_t i = 0; i < n_lanes; ++i) {
    const std::uint64_t block = first_block + i;
    words[0][i] = static_cast<std::uint32_t>(block);
    words[1][i] = static_cast<std::uint32_t>(block >> 32);
    words[2][i] = words[3][i] = 0;
  }
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < n_lanes; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53} * words[0][i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * words[2][i];
      words[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1][i] ^ k0;
      words[1][i] = static_cast<std::uint32_t>(p1);
      words[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3][i] ^ k1;
      words[3][i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

/// ln of a float in [2^-24, 1], to 2 units in the last place: x = 2^e * m with m in
/// [sqrt(1/2), sqrt(2)), and the polynomial of the Cephes library (S. L. Moshier) for ln(1 + f).
inline float log_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - 0x3F3504F3u;  // sqrt(1/2) to 0
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = std::bit_cast<float>((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  float y = f * z * p;
  y = y + exponent * -2.12194440e-4f;  // ln 2 in two parts
  y = y - 0.5f * z;
  return (f + y) + exponent * 0.693359375f;
}

/// cos and sin of 2 pi v for v in [0, 1), a multiple of 2^-24: the quarter turn is split off
/// exactly, what is left (within 1/8 of a turn) goes into the Cephes polynomials.
struct CosSin {
  float cos;
  float sin;
};
inline CosSin cos_sin_of_turns(float v) {
  const float quarters = 4.0f * v;
  const auto quarter = static_cast<std::int32_t>(quarters + 0.5f);
  const float r = (quarters - static_cast<float>(quarter)) * 1.5707963268f;
  const float z = r * r;
  const float sin_r =
      ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
  const float cos_r =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
      0.5f * z + 1.0f;
  const bool swapped = (quarter & 1) != 0;
  const float c = swapped ? sin_r : cos_r;
  const float s = swapped ? cos_r : sin_r;
  return {((quarter + 1) & 2) != 0 ? -c : c, (quarter & 2) != 0 ? -s : s};
}

/// Box and Muller's pair of normal numbers of two words, times the deviation.
void normal_lanes(const Words& first, const Words& second, float deviation, Lanes& a, Lanes& b) {
  for (std::size_t i = 0; i < n_lanes; ++i) {
    // Signed, because vector units convert signed integers.
    const float u =
        static_cast<float>(0x1000000 - static_cast<std::int32_t>(first[i] >> 8)) * 0x1p-24f;
    const float v = static_cast<float>(static_cast<std::int32_t>(second[i] >> 8)) * 0x1p-24f;
    const float radius = deviation * std::sqrt(-2.0f * log_of(u));
    const CosSin angle = cos_sin_of_turns(v);
    a[i] = radius * angle.cos;
    b[i] = radius * angle.sin;
  }
}

/// out[0 .. 256) = elements of blocks first_block .. first_block + 63.
void fill_blocks(std::uint64_t key, std::uint64_t first_block, float deviation, float* out) {
  std::array<Words, 4> words;
  philox_lanes(key, first_block, words);
  std::array<Lanes, 4> normal;
  normal_lanes(words[0], words[1], deviation, normal[0], normal[1]);
  normal_lanes(words[2], words[3], deviation, normal[2], normal[3]);
  for (std::size_t i = 0; i < n_lanes; ++i) {
    for (std::size_t w = 0; w < 4; ++w) out[4 * i + w] = normal[w][i];
  }
}

/// Elements [begin, begin + n) of a transposed piece in the internal tensor's order, column by
/// column of tiles: a tile's columns are runs of the logical tensor.
struct Transposed {
  std::uint64_t key;
  float deviation;
  std::int64_t n_rows;     // of the internal tensor: out
  std::int64_t n_columns;  // in
};

void fill_transposed(const Transposed& piece, Range elements, float* out) {
  constexpr std::int64_t tile_rows = 256;
  constexpr std::int64_t tile_columns = 16;  // one cache line of a row
  const std::int64_t last_row = (elements.end - 1) / piece.n_columns;
  std::vector<float> tile(static_cast<std::size_t>(tile_rows * tile_columns));
  for (std::int64_t row = elements.begin / piece.n_columns; row <= last_row; row += tile_rows) {
    const std::int64_t n_rows = std::min(tile_rows, last_row + 1 - row);
    for (std::int64_t column = 0; column < piece.n_columns; column += tile_columns) {
      const std::int64_t n_columns = std::min(tile_columns, piece.n_columns - column);
      for (std::int64_t c = 0; c < n_columns; ++c) {
        fill_normal(piece.key, (column + c) * piece.n_rows + row, n_rows, piece.deviation,
                    tile.data() + c * tile_rows);
      }
      for (std::int64_t r = 0; r < n_rows; ++r) {
        const std::int64_t first = (row + r) * piece.n_columns + column;
        const std::int64_t begin = std::max(first, elements.begin);
        const std::int64_t end = std::min(first + n_columns, elements.end);
        for (std::int64_t i = begin; i < end; ++i) {
          out[i - elements.begin] = tile[static_cast<std::size_t>((i - first) * tile_rows + r)];
        }
      }
    }
  }
}

}  // namespace

std::uint64_t init_key(std::uint64_t seed, std::string_view hf_name) {
  return mix_key(mix_key(seed, "init"), hf_name);
}

void fill_normal(std::uint64_t key, std::int64_t begin, std::int64_t n, float deviation,
                 float* out) {
  constexpr std::int64_t n_at_once = 4 * n_lanes;
  std::array<float, n_at_once> buffer;
  std::int64_t block = begin / 4;
  std::int64_t skip = begin % 4;
  while (n > 0) {
    const std::int64_t taken = std::min(n, n_at_once - skip);
    const bool whole = taken == n_at_once;
    fill_blocks(key, static_cast<std::uint64_t>(block), deviation, whole ? out : buffer.data());
    if (!whole) std::copy_n(buffer.begin() + skip, taken, out);
    out += taken;
    n -= taken;
    block += static_cast<std::int64_t>(n_lanes);
    skip = 0;
  }
}

void initialize(const ParameterSpec& parameter, std::uint64_t seed, Range elements,
                MutView values) {
  CHECK_CONTRACT(0 <= elements.begin && elements.end <= parameter.n_elements(),
                 "a range of elements lies inside its parameter");
  CHECK_CONTRACT(values.n_elements() == elements.size(), "a range is filled exactly");
  CHECK_CONTRACT(!parameter.slice, "values are those of whole tensors");
  auto* out = values.as<float>();
  if (parameter.init.deviation == 0) {
    std::fill_n(out, elements.size(), parameter.init.constant);
    return;
  }
  const std::int64_t n_columns = parameter.shape.n_dims() == 2 ? parameter.shape[1] : 1;
  for (const HfPiece& piece : parameter.pieces) {
    const Range whole{piece.rows.begin * n_columns, piece.rows.end * n_columns};
    const Range mine{std::max(whole.begin, elements.begin), std::min(whole.end, elements.end)};
    if (mine.empty()) continue;
    const std::uint64_t key = init_key(seed, piece.name);
    const Range inside{mine.begin - whole.begin, mine.end - whole.begin};
    float* target = out + (mine.begin - elements.begin);
    if (piece.transposed) {
      fill_transposed({key, parameter.init.deviation, piece.rows.size(), n_columns}, inside,
                      target);
    } else {
      fill_normal(key, inside.begin, inside.size(), parameter.init.deviation, target);
    }
  }
}

}  // namespace llm
