#pragma once
#include <cstdint>
#include <string_view>

#include "src/base/range.h"
#include "src/model/parameters.h"
#include "tensor/view.h"

namespace llm {

/// The key of the stream from which logical tensor `hf_name` starts.
std::uint64_t init_key(std::uint64_t seed, std::string_view hf_name);

/// out[i] = deviation * z(begin + i), z a standard normal number that is a function of (key, index)
/// alone: block philox_at(key, index / 4) has words w0..w3; the pair (w0, w1) gives elements 0 and
/// 1 of the block, (w2, w3) gives 2 and 3, by Box and Muller 1958 with u = 1 - (w0 >> 8) / 2^24 and
/// v = (w1 >> 8) / 2^24: sqrt(-2 ln u) * cos(2 pi v), then the same with sin.
/// Bits depend on neither compiler nor vector width: ln, sin and cos are fixed f32 polynomials.
void fill_normal(std::uint64_t key, std::int64_t begin, std::int64_t n, float deviation,
                 float* out);

/// Starting values of elements [elements.begin, elements.end) of a whole tensor, into
/// values (elements.size()) f32. A value is a function of (seed, Hugging Face tensor name, element
/// index in that tensor) alone, so every rank fills what it owns.
void initialize(const ParameterSpec& parameter, std::uint64_t seed, Range elements, MutView values);

}  // namespace llm
