#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "src/base/host_device.h"

namespace llm {

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011): a pure function from a 128-bit counter and a
/// 64-bit key to 128 random bits. Everything random in this program is drawn by it, keyed by what
/// is drawn and never by who draws it, so that layouts cannot change a draw.
using PhiloxBlock = std::array<std::uint32_t, 4>;

LLM_HOST_DEVICE inline PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

/// 128 random bits for draw number `index` of the stream `key`.
LLM_HOST_DEVICE inline PhiloxBlock philox_at(std::uint64_t key, std::uint64_t index) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                key);
}

/// Folds `value` into a key: one Philox round trip, so that close values give unrelated streams.
LLM_HOST_DEVICE inline std::uint64_t mix_key(std::uint64_t key, std::uint64_t value) {
  const PhiloxBlock block = philox(
      {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32), 0x6C6C6D, 1},
      key);
  return (std::uint64_t{block[1]} << 32) | block[0];
}

/// Folds a name into a key, eight bytes at a time, its length last.
inline std::uint64_t mix_key(std::uint64_t key, std::string_view name) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    word |= std::uint64_t{static_cast<unsigned char>(name[i])} << (8 * (i % 8));
    if (i % 8 == 7) {
      key = mix_key(key, word);
      word = 0;
    }
  }
  return mix_key(mix_key(key, word), std::uint64_t{name.size()});
}

/// A number in [0, 1) with 24 bits, from 32 random bits.
LLM_HOST_DEVICE inline float uniform_from(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

}  // namespace llm
