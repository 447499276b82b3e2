#include "tensor/ops/dropout_kernels.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/ops/dropout_fast.cpp"
#include <hwy/foreach_target.h>

#include "tensor/ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llm {
namespace HWY_NAMESPACE {

struct Product {
  Words high;
  Words low;
};

LANES_INLINE Product multiply(const Words& x, std::uint32_t factor) {
  const WordTag d;
  const hn::RepartitionToWide<WordTag> d_wide;
  const Words factors = hn::Set(d, factor);
  const auto even = hn::MulEven(x, factors);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d_wide, x))), factors);
  return {hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even))};
}

/// Philox 4x32-10 as in src/base/philox.h, one block a lane.
struct PhiloxLanes {
  Words word[4];

  LANES_INLINE void run(std::uint64_t key) {
    const WordTag d;
    auto k0 = static_cast<std::uint32_t>(key);
    auto k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const Product p0 = multiply(word[0], 0xD2511F53);
      const Product p1 = multiply(word[2], 0xCD9E8D57);
      word[0] = hn::Xor(hn::Xor(p1.high, word[1]), hn::Set(d, k0));
      word[1] = p1.low;
      word[2] = hn::Xor(hn::Xor(p0.high, word[3]), hn::Set(d, k1));
      word[3] = p0.low;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
  }
};

inline constexpr std::int64_t chunk_elements = 4 * n_lanes;

/// The 64 factors of Philox blocks first_block .. first_block + 15.
LANES_INLINE void chunk_factors(std::uint64_t key, const Lanes& p, const Lanes& scale,
                                std::uint64_t first_block, float* factors) {
  const WordTag d;
  const hn::RebindToSigned<RegisterTag> d_signed;
  for (int r = 0; r < n_registers; ++r) {
    const std::uint64_t block = first_block + static_cast<std::uint64_t>(r * register_lanes);
    const Words first = hn::Set(d, static_cast<std::uint32_t>(block));
    const Words low = hn::Add(first, hn::Iota(d, 0));
    const auto high = static_cast<std::uint32_t>(block >> 32);
    const Words carried =
        hn::IfThenElse(hn::Lt(low, first), hn::Set(d, high + 1), hn::Set(d, high));
    PhiloxLanes philox{{low, carried, hn::Zero(d), hn::Zero(d)}};
    philox.run(key);
    Register factor[4];
    for (int w = 0; w < 4; ++w) {
      const auto bits = hn::BitCast(d_signed, hn::ShiftRight<8>(philox.word[w]));
      const Register uniform =
          hn::Mul(hn::ConvertTo(register_tag, bits), hn::Set(register_tag, 0x1p-24f));
      factor[w] = hn::IfThenElseZero(hn::Ge(uniform, p.part[r]), scale.part[r]);
    }
    hn::StoreInterleaved4(factor[0], factor[1], factor[2], factor[3], register_tag,
                          factors + 4 * r * register_lanes);
  }
}

void dropout_factors(std::uint64_t key, float p, std::int64_t first, std::int64_t n,
                     float* factors) {
  const Lanes threshold = broadcast(p);
  const Lanes scale = broadcast(1 / (1 - p));
  const std::int64_t end = first + n;
  alignas(64) float buffer[chunk_elements];
  for (std::int64_t begin = first / 4 * 4; begin < end; begin += chunk_elements) {
    const bool whole = begin >= first && begin + chunk_elements <= end;
    float* into = whole ? factors + (begin - first) : buffer;
    chunk_factors(key, threshold, scale, static_cast<std::uint64_t>(begin / 4), into);
    if (whole) continue;
    const std::int64_t from = std::max(begin, first);
    const std::int64_t to = std::min(begin + chunk_elements, end);
    std::copy(buffer + (from - begin), buffer + (to - begin), factors + (from - first));
  }
}

template <typename T>
void masked(std::uint64_t key, float p, std::int64_t first, std::int64_t n, const T* x,
            const T* residual, T* out) {
  constexpr std::int64_t batch = 16 * chunk_elements;
  alignas(64) float factors[batch];
  for (std::int64_t begin = 0; begin < n; begin += batch) {
    const std::int64_t here = std::min(batch, n - begin);
    if (p > 0) {
      dropout_factors(key, p, first + begin, here, factors);
    } else if (begin == 0) {
      std::fill(factors, factors + batch, 1.0f);
    }
    for (std::int64_t i = 0; i < here; i += n_lanes) {
      const std::int64_t left = here - i;
      const Lanes kept = load(factors + i, left) * load(x + begin + i, left);
      const Lanes base = residual ? load(residual + begin + i, left) : broadcast(0);
      store(base + kept, out + begin + i, left);
    }
  }
}

void dropout(std::uint64_t key, float p, std::int64_t first, std::int64_t n, Elements x,
             Elements residual, MutElements out) {
  with_type_of(x.dtype, [&](auto type) {
    using T = decltype(type);
    masked(key, p, first, n, x.as<T>(), residual.as<T>(), out.as<T>());
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace llm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm {
HWY_EXPORT(dropout_factors);
HWY_EXPORT(dropout);
namespace fast {

void dropout_factors(std::uint64_t key, float p, std::int64_t first, std::int64_t n,
                     float* factors) {
  HWY_DYNAMIC_DISPATCH(dropout_factors)(key, p, first, n, factors);
}

void dropout(std::uint64_t key, float p, std::int64_t first, std::int64_t n, Elements x,
             Elements residual, MutElements out) {
  HWY_DYNAMIC_DISPATCH(dropout)(key, p, first, n, x, residual, out);
}

}  // namespace fast
}  // namespace llm
#endif
