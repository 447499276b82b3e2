#pragma once
#include <cstdint>
#include <vector>

#include "src/base/range.h"

namespace llm {

/// One trained tensor for the flat layout, in the order in which backward completes gradients.
struct FlatTensor {
  std::int64_t n_elements;
  std::int64_t layer;   ///< when this layer's backward is done, the gradient is complete
  int part = 0;         ///< or already when this part of it is: the layer's parts in their order
  int unit = 0;         ///< no bucket has tensors of two units (schedules/units.h)
  bool is_own = false;  ///< this rank's alone in its data-parallel group; no bucket has both kinds
};

/// A piece of a tensor that lies in one bucket.
struct BucketPiece {
  std::int64_t tensor;  ///< index in the order given
  Range elements;       ///< of the tensor; begins on a norm chunk
  std::int64_t flat_begin;
};

/// A contiguous part of the flat buffers that is reduced as one.
struct Bucket {
  Range flat;                      ///< elements, padding between tensors included
  std::int64_t ready_after_layer;  ///< the last layer whose backward it waits for
  bool is_own = false;             ///< its tensors are this rank's alone: nothing is exchanged
  std::vector<BucketPiece> pieces;
};

/// Gradients, weights and moments as flat buffers of one layout: tensors one after the other, each
/// from a multiple of `alignment_elements`; buckets cut at chunk bounds within tensors.
struct FlatLayout {
  static constexpr std::int64_t alignment_elements = 16;  ///< 64 bytes of f32
  std::vector<std::int64_t> tensor_begin;
  std::vector<FlatTensor> tensors;
  std::int64_t n_elements = 0;
  std::vector<Bucket> buckets;
};

/// Buckets of `bucket_elements` at most (at least one chunk each). A bucket that is half full ends
/// with a part of a layer, so that it does not wait for the next one's backward; and what comes
/// last, when there is no backward left to hide behind, is what the last layer alone completes.
FlatLayout flat_layout(const std::vector<FlatTensor>& tensors, std::int64_t bucket_elements,
                       std::int64_t chunk_elements);

}  // namespace llm
