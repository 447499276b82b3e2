#pragma once
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor/ops/adamw.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/router.h"
#include "tensor/view.h"

namespace llm {

/// An op's function and arguments as bytes: what has the same bytes puts the same kernels into a
/// stream, with the same memory. Left out are the numbers that are new in each microbatch: they
/// stand beside them, and kernels can read them on the device (Dropout::numbers).
struct OpKey {
  std::string bytes;
  std::vector<std::int64_t> numbers;
};

namespace cuda {

/// Whether an op with such an argument comes again: AdamW's factors are new in every step.
template <typename T>
inline constexpr bool is_repeated = !std::is_same_v<T, AdamwStep>;

/// Two equal values may differ in unnamed bytes of a struct, and an op is then taken for another
/// one, never one for another that differs. So structs with such bytes are added by their parts.
template <typename T>
void add_bytes(OpKey& key, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  key.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
void add_to_key(OpKey& key, const T& value) {
  static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>,
                "an argument with unnamed bytes is added by its parts");
  add_bytes(key, value);
}
inline void add_to_key(OpKey& key, const View& x) {
  add_bytes(key, x.data());
  add_bytes(key, x.dtype());
  add_bytes(key, x.shape().n_dims());
  for (int dim = 0; dim < x.shape().n_dims(); ++dim) add_bytes(key, x.shape()[dim]);
}
inline void add_to_key(OpKey& key, const MutView& x) {
  add_to_key(key, View(x));
}
inline void add_to_key(OpKey& key, const Routing& routing) {
  for (const MutView& view : {routing.logits, routing.experts, routing.weights, routing.rows,
                              routing.visits, routing.begins, routing.counts}) {
    add_to_key(key, view);
  }
}
inline void add_to_key(OpKey& key, const RouterWeights& weights) {
  add_bytes(key, weights.balance);
  add_bytes(key, weights.z);
}
inline void add_to_key(OpKey& key, const Dropout& dropout) {
  add_bytes(key, dropout.p);
  if (dropout.p == 0) return;  // then nothing else of it is read
  add_bytes(key, dropout.seed);
  add_bytes(key, dropout.first_row);
  add_bytes(key, dropout.layer);
  add_bytes(key, dropout.site);
  key.numbers = {dropout.step, dropout.first_sample};
}

template <typename... Arguments>
OpKey key_of(const void* function, const Arguments&... arguments) {
  OpKey key;
  add_bytes(key, function);
  (add_to_key(key, arguments), ...);
  return key;
}

/// An argument that reads its key's numbers at `numbers`.
template <typename T>
T with_numbers(const T& argument, const std::int64_t*) {
  return argument;
}
inline Dropout with_numbers(Dropout dropout, const std::int64_t* numbers) {
  dropout.numbers = numbers;
  return dropout;
}

}  // namespace cuda
}  // namespace llm
