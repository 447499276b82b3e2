#include "schedules/shards.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm {
namespace {

/// Where a bucket may be cut, from its begin: at norm chunks and at tensors.
std::vector<std::int64_t> bounds_of(const FlatLayout& layout, const Bucket& bucket,
                                    std::int64_t chunk_elements) {
  std::vector<std::int64_t> bounds{0};
  for (const BucketPiece& piece : bucket.pieces) {
    for (std::int64_t e = 0; e < piece.elements.size(); e += chunk_elements) {
      bounds.push_back(piece.flat_begin + e - bucket.flat.begin);
    }
  }
  bounds.push_back(bucket.flat.size());
  CHECK_CONTRACT(bucket.flat.end <= layout.n_elements, "a bucket lies in its layout");
  return bounds;
}

}  // namespace

std::vector<std::int64_t> shard_cuts(const FlatLayout& layout, std::size_t bucket, int n_pieces,
                                     std::int64_t chunk_elements) {
  CHECK_CONTRACT(n_pieces >= 1, "a bucket is cut in at least one piece");
  const Bucket& whole = layout.buckets[bucket];
  const std::vector<std::int64_t> bounds = bounds_of(layout, whole, chunk_elements);
  std::vector<std::int64_t> cuts{0};
  for (int k = 1; k < n_pieces; ++k) {
    const std::int64_t ideal = whole.flat.size() * k / n_pieces;
    const auto above = std::lower_bound(bounds.begin(), bounds.end(), ideal);
    const bool below_is_nearer = above != bounds.begin() && ideal - *(above - 1) < *above - ideal;
    cuts.push_back(below_is_nearer ? *(above - 1) : *above);
  }
  cuts.push_back(whole.flat.size());
  return cuts;
}

std::vector<std::vector<std::int64_t>> tensor_cuts(const FlatLayout& layout, std::int64_t tensor,
                                                   int n_pieces, std::int64_t chunk_elements) {
  std::vector<std::vector<std::int64_t>> by_bucket;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    for (const BucketPiece& piece : bucket.pieces) {
      if (piece.tensor != tensor) continue;
      std::vector<std::int64_t>& cuts = by_bucket.emplace_back();
      for (const std::int64_t cut : shard_cuts(layout, b, n_pieces, chunk_elements)) {
        const std::int64_t element =
            piece.elements.begin + bucket.flat.begin + cut - piece.flat_begin;
        cuts.push_back(std::clamp(element, piece.elements.begin, piece.elements.end));
      }
    }
  }
  return by_bucket;
}

Shard shard_of(const FlatLayout& layout, int n_pieces, int piece, std::int64_t chunk_elements) {
  CHECK_CONTRACT(0 <= piece && piece < n_pieces, "a rank's piece is one of the group's");
  Shard shard;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    const std::vector<std::int64_t> cuts = shard_cuts(layout, b, n_pieces, chunk_elements);
    const auto k = static_cast<std::size_t>(piece);
    const Range own = bucket.is_own
                          ? bucket.flat
                          : Range{bucket.flat.begin + cuts[k], bucket.flat.begin + cuts[k + 1]};
    shard.flat.push_back(own);
    std::vector<OwnedPiece>& pieces = shard.pieces.emplace_back();
    for (const BucketPiece& of_bucket : bucket.pieces) {
      const std::int64_t begin = std::max(of_bucket.flat_begin, own.begin);
      const std::int64_t end = std::min(of_bucket.flat_begin + of_bucket.elements.size(), own.end);
      if (begin >= end) continue;
      const std::int64_t first = of_bucket.elements.begin + begin - of_bucket.flat_begin;
      pieces.push_back({of_bucket.tensor,
                        {first, first + end - begin},
                        begin,
                        shard.n_elements + begin - own.begin});
    }
    shard.n_elements += own.size();
  }
  return shard;
}

}  // namespace llm
