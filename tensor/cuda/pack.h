#pragma once
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "tensor/cuda/launch.h"

/// How rows are read and written: 16 bytes at a time, where they lie so. Which thread has which
/// elements follows from the type alone, so that sums have one order wherever the rows lie.
namespace llm::cuda {

/// n neighbours.
template <typename T, int n>
struct alignas(n * sizeof(T) < 16 ? n * sizeof(T) : 16) Pack {
  T at[n];
};
template <typename T>
inline constexpr int pack_size = 16 / sizeof(T);

/// n elements from x on, of which n_there are there; the others are 0. `is_whole`: all are, and x
/// is aligned as a pack.
template <int n, bool is_whole, typename T>
__device__ Pack<T, n> load(const T* x, std::int64_t n_there) {
  if constexpr (is_whole) {
    return *reinterpret_cast<const Pack<T, n>*>(x);
  } else {
    Pack<T, n> pack{};
    for (int i = 0; i < n; ++i) {
      if (i < n_there) pack.at[i] = x[i];
    }
    return pack;
  }
}
template <bool is_whole, int n, typename T>
__device__ void store(const Pack<T, n>& pack, T* x, std::int64_t n_there) {
  if constexpr (is_whole) {
    *reinterpret_cast<Pack<T, n>*>(x) = pack;
  } else {
    for (int i = 0; i < n; ++i) {
      if (i < n_there) x[i] = pack.at[i];
    }
  }
}

/// Whether pieces of n_bytes cut all rows of row_bytes, of which the first begin at `pointers`.
inline bool fits(std::int64_t n_bytes, std::int64_t row_bytes,
                 std::initializer_list<const void*> pointers) {
  auto bits = static_cast<std::uintptr_t>(row_bytes);
  for (const void* const pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return bits % static_cast<std::uintptr_t>(n_bytes) == 0;
}

/// run(std::bool_constant<is_whole>()) for rows of `width` elements in packs of pack_size<T>.
template <typename T, typename Run>
void with_packs_of(std::int64_t width, std::initializer_list<const void*> pointers,
                   const Run& run) {
  if (fits(16, width * static_cast<std::int64_t>(sizeof(T)), pointers)) {
    run(std::true_type());
  } else {
    run(std::false_type());
  }
}

/// A block for each row, of as many warps as its packs of n need; 65,535 blocks at most, which take
/// rows in turns.
inline Grid packed_rows_grid(std::int64_t n_rows, std::int64_t width, int n) {
  constexpr std::int64_t most_blocks = 65'535;
  const std::int64_t n_warps = (width + n * lanes - 1) / (n * lanes);
  const auto warps = static_cast<unsigned>(n_warps < 1 ? 1 : n_warps);
  const unsigned n_threads = lanes * (warps < block_warps ? warps : block_warps);
  return {n_rows < most_blocks ? n_rows : most_blocks, n_threads, partials_bytes<float>};
}

/// Of n_elements in one row of packs: run(first element, how many there are from it on).
template <int n, typename Run>
__device__ void for_each_pack(std::int64_t n_elements, const Run& run) {
  for (std::int64_t i = first_element() * n; i < n_elements; i += element_stride() * n) {
    run(i, n_elements - i);
  }
}
inline Grid packs_grid(std::int64_t n_elements, int n) {
  return grid_of((n_elements + n - 1) / n);
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
