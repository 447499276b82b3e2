#pragma once
#include <cstdint>
#include <vector>

#include "schedules/buckets.h"
#include "src/base/range.h"

namespace llm {

/// A part of a tensor that a rank owns: updates, and keeps the moments of.
struct OwnedPiece {
  std::int64_t tensor;  ///< of the layout
  Range elements;       ///< of the tensor; begins on a norm chunk
  std::int64_t flat_begin;
  std::int64_t shard_begin;  ///< in the rank's shard buffers
};

/// What one rank of a data-parallel group owns of a layout: a piece of each bucket, as equal as
/// whole norm chunks allow, and all of a bucket that is its own (Bucket::is_own). Pieces may be
/// empty: a group may have more ranks than chunks.
struct Shard {
  std::vector<Range> flat;                      ///< by bucket: elements, paddings included
  std::vector<std::vector<OwnedPiece>> pieces;  ///< by bucket
  std::int64_t n_elements = 0;                  ///< of a shard buffer
};

/// The bounds of `bucket`'s pieces, from 0 to its size: n_pieces + 1 of them, each on a norm chunk.
/// Even by elements, which all have one size on the wire.
std::vector<std::int64_t> shard_cuts(const FlatLayout& layout, std::size_t bucket, int n_pieces,
                                     std::int64_t chunk_elements);

/// The same of one tensor: for each bucket that has elements of it, the bounds of the pieces among
/// the tensor's elements.
std::vector<std::vector<std::int64_t>> tensor_cuts(const FlatLayout& layout, std::int64_t tensor,
                                                   int n_pieces, std::int64_t chunk_elements);

/// Piece `piece` of `n_pieces` of every bucket. One piece is the whole layout, at its own offsets.
Shard shard_of(const FlatLayout& layout, int n_pieces, int piece, std::int64_t chunk_elements);

}  // namespace llm
