#pragma once
#include <cstdint>

#include "src/base/philox.h"
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// Where a dropout mask belongs. An element is kept when its uniform number in [0, 1) is >= p and
/// then scaled by 1 / (1 - p). The number is word e % 4 of philox_at(key(sample), e / 4) for
/// element index e in its sample, key(sample) folding seed, step, global sample index, layer and
/// site: the same mask in every layout, at recompute and after resume.
struct Dropout {
  float p = 0;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_sample = 0;  ///< global index of the batch's first sample
  std::int64_t first_row = 0;     ///< of the batch's rows, where x begins
  std::int32_t layer = 0;
  std::int32_t site = 0;  ///< which dropout of the layer
  /// On a device, where not nullptr: step and first_sample are read there when the kernel runs.
  const std::int64_t* numbers = nullptr;
  LLM_HOST_DEVICE std::uint64_t key(std::int64_t sample_in_batch) const {
    const std::int64_t first = numbers == nullptr ? first_sample : numbers[1];
    std::uint64_t key =
        mix_key(seed, static_cast<std::uint64_t>(numbers == nullptr ? step : numbers[0]));
    key = mix_key(key, static_cast<std::uint64_t>(first + sample_in_batch));
    key = mix_key(key, static_cast<std::uint64_t>(layer));
    return mix_key(key, static_cast<std::uint64_t>(site));
  }
};

/// out[r, c] = residual[r, c] + mask * x[r, c] / (1 - p); residual may be empty (then 0), out may
/// be x or residual. p = 0 only adds (or copies).
///   x, residual, out f32, or all bf16, or all f16: the sum in f32 is rounded once
///   x (n, C) the batch's rows from first_row on, of which [i * rows_per_sample, (i+1) *
///   rows_per_sample) are sample first_sample + i
void dropout_forward(Queue& queue, const Dropout& dropout, std::int64_t rows_per_sample, View x,
                     View residual, MutView out);

/// dx = mask * dy / (1 - p). dx may be dy. dy and dx have one dtype, as above.
void dropout_backward(Queue& queue, const Dropout& dropout, std::int64_t rows_per_sample, View dy,
                      MutView dx);

}  // namespace llm
