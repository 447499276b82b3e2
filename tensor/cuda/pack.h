#pragma once
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "tensor/cuda/launch.h"

/// How rows are read and written: 16 bytes at a time, where they allow it.
namespace llm::cuda {

/// n neighbours, which one access moves; they begin at a multiple of their size.
template <typename T, int n>
struct alignas(n * sizeof(T)) Pack {
  T at[n];
};
template <int n, typename T>
__device__ Pack<T, n> load(const T* x) {
  return *reinterpret_cast<const Pack<T, n>*>(x);
}
template <int n, typename T>
__device__ void store(T* x, const Pack<T, n>& pack) {
  *reinterpret_cast<Pack<T, n>*>(x) = pack;
}

/// Whether packs of n_bytes cut all rows of row_bytes, of which the first begin at `pointers`.
inline bool fits(std::int64_t n_bytes, std::int64_t row_bytes,
                 std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = static_cast<std::uintptr_t>(row_bytes);
  for (const void* const pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return bits % static_cast<std::uintptr_t>(n_bytes) == 0;
}

/// run(std::integral_constant<int, n>()), with 16 bytes of T in a pack, or 1 element.
template <typename T, typename Run>
void with_pack_of(std::int64_t width, std::initializer_list<const void*> pointers, const Run& run) {
  constexpr int n = 16 / sizeof(T);
  if (fits(16, width * static_cast<std::int64_t>(sizeof(T)), pointers)) {
    run(std::integral_constant<int, n>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

/// run(Unit()) with the largest unit that moves rows of any type.
template <typename Run>
void with_unit_of(std::int64_t row_bytes, std::initializer_list<const void*> pointers,
                  const Run& run) {
  if (fits(16, row_bytes, pointers)) return run(Pack<std::uint64_t, 2>());
  if (fits(4, row_bytes, pointers)) return run(std::uint32_t());
  if (fits(2, row_bytes, pointers)) return run(std::uint16_t());
  run(std::uint8_t());
}

}  // namespace llm::cuda
