#include "src/base/crc32.h"

#include <array>
#include <cstring>

namespace llm {
namespace {

constexpr std::size_t n_tables = 16;
using Tables = std::array<std::array<std::uint32_t, 256>, n_tables>;

/// tables[k][b]: what byte b changes in the state k bytes later.
constexpr Tables make_tables(std::uint32_t polynomial) {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t state = b;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? polynomial : 0);
    tables[0][b] = state;
  }
  for (std::size_t k = 1; k < n_tables; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t before = tables[k - 1][b];
      tables[k][b] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables zlib_tables = make_tables(0xEDB88320u);
constexpr Tables castagnoli_tables = make_tables(0x82F63B78u);

std::uint32_t advance(const Tables& tables, std::uint32_t state, const void* bytes, std::size_t n) {
  const auto* next = static_cast<const unsigned char*>(bytes);
  // Sixteen bytes a turn: their sixteen look-ups do not wait for each other.
  for (; n >= n_tables; n -= n_tables, next += n_tables) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      sum ^= tables[n_tables - 1 - i][(next[i] ^ state >> (8 * i)) & 0xFF];
    }
    for (std::size_t i = 4; i < n_tables; ++i) sum ^= tables[n_tables - 1 - i][next[i]];
    state = sum;
  }
  for (; n > 0; --n) state = state >> 8 ^ tables[0][(state ^ *next++) & 0xFF];
  return state;
}

}  // namespace

void Crc32::add(const void* bytes, std::size_t n) {
  state_ = advance(zlib_tables, state_, bytes, n);
}

std::uint32_t crc32(const void* bytes, std::size_t n) {
  Crc32 sum;
  sum.add(bytes, n);
  return sum.value();
}

std::uint32_t crc32c(const void* bytes, std::size_t n) {
  return ~advance(castagnoli_tables, 0xFFFFFFFFu, bytes, n);
}

}  // namespace llm
