#pragma once
#include <cstdint>
#include <vector>

#include "schedules/buckets.h"
#include "src/model/parameters.h"
#include "tensor/view.h"

namespace llm {

/// Where what ops read lies, as bytes in the order of the flat layout: matrices and embeddings in
/// the compute dtype, vectors in f32, each tensor aligned to 64 bytes.
struct ComputeLayout {
  std::vector<std::int64_t> begin;  ///< by tensor, and then the end
  std::vector<Dtype> dtype;         ///< by tensor
  std::int64_t n_bytes() const { return begin.back(); }
  /// The byte of an element of the flat layout; in padding that of the next tensor.
  std::int64_t byte_of(const FlatLayout& layout, std::int64_t element) const;
};
ComputeLayout compute_layout(const ModelConfig& config, const LayerRanges& ranges);

/// The bounds of a bucket's pieces (shard_cuts) among the bytes that ops read of it.
std::vector<std::int64_t> compute_cuts(const FlatLayout& layout, const ComputeLayout& compute,
                                       std::size_t bucket, int n_pieces);

}  // namespace llm
