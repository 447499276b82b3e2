#include "schedules/buckets.h"

#include "schedules/shards.h"

#include <catch2/catch.hpp>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

constexpr std::int64_t chunk = 64;

std::int64_t aligned(std::int64_t n) {
  return (n + FlatLayout::alignment_elements - 1) / FlatLayout::alignment_elements *
         FlatLayout::alignment_elements;
}

/// Tensors of a grid of sizes around the chunk, four layers of them, in backward's order.
std::vector<FlatTensor> tensors_of(int kind) {
  std::vector<FlatTensor> tensors;
  for (std::int64_t layer = 3; layer >= 0; --layer) {
    for (const std::int64_t n : {1, 15, 16, 63, 64, 65, 128, 200, 1000}) {
      if (kind == 0 || n % 2 == kind % 2) {
        tensors.push_back({n * (kind > 2 ? 7 : 1), layer, kind == 4 && n > 64 ? 1 : 0});
      }
    }
  }
  return tensors;
}

struct BucketGrid {
  int kind;
  std::int64_t bucket_elements;
};

std::vector<BucketGrid> grids() {
  std::vector<BucketGrid> all;
  for (int kind = 0; kind < 5; ++kind) {
    for (const std::int64_t n : {1, 16, 63, 64, 65, 100, 128, 500, 1000, 4096, 1 << 20}) {
      all.push_back({kind, n});
    }
  }
  return all;
}

}  // namespace

TEST_CASE("tensors that are a rank's own have buckets of their own, of which each rank has all") {
  const std::vector<FlatTensor> tensors{{.n_elements = 40, .layer = 1, .is_own = true},
                                        {.n_elements = 8, .layer = 1, .is_own = true},
                                        {.n_elements = 40, .layer = 1},
                                        {.n_elements = 24, .layer = 0, .is_own = true}};
  const FlatLayout layout = flat_layout(tensors, 1000, 8);
  REQUIRE(layout.buckets.size() == 3);
  CHECK(layout.buckets[0].is_own);
  CHECK(!layout.buckets[1].is_own);
  CHECK(layout.buckets[2].is_own);
  for (const int piece : {0, 1}) {
    const Shard shard = shard_of(layout, 2, piece, 8);
    CHECK(shard.flat[0] == layout.buckets[0].flat);
    CHECK(shard.flat[1].size() < layout.buckets[1].flat.size());
    CHECK(shard.flat[2] == layout.buckets[2].flat);
    CHECK(shard.pieces[0].size() == 2);
  }
}

TEST_CASE("bucket pieces cover every element of every tensor once, in order, from chunk bounds") {
  for (const BucketGrid& grid : grids()) {
    INFO("tensors " << grid.kind << ", buckets of " << grid.bucket_elements);
    const std::vector<FlatTensor> tensors = tensors_of(grid.kind);
    const FlatLayout layout = flat_layout(tensors, grid.bucket_elements, chunk);
    std::size_t tensor = 0;
    std::int64_t done = 0;
    for (const Bucket& bucket : layout.buckets) {
      REQUIRE(!bucket.pieces.empty());
      for (const BucketPiece& piece : bucket.pieces) {
        if (done == tensors[tensor].n_elements) {
          ++tensor;
          done = 0;
        }
        REQUIRE(piece.tensor == static_cast<std::int64_t>(tensor));
        REQUIRE(piece.elements.begin == done);
        REQUIRE(piece.elements.begin % chunk == 0);
        REQUIRE(!piece.elements.empty());
        REQUIRE(piece.flat_begin == layout.tensor_begin[tensor] + done);
        done = piece.elements.end;
        REQUIRE(done <= tensors[tensor].n_elements);
        REQUIRE((done % chunk == 0 || done == tensors[tensor].n_elements));
      }
    }
    REQUIRE(tensor == tensors.size() - 1);
    REQUIRE(done == tensors.back().n_elements);
  }
}

TEST_CASE("buckets cover the flat buffer without a gap, and tensors begin aligned") {
  for (const BucketGrid& grid : grids()) {
    INFO("tensors " << grid.kind << ", buckets of " << grid.bucket_elements);
    const std::vector<FlatTensor> tensors = tensors_of(grid.kind);
    const FlatLayout layout = flat_layout(tensors, grid.bucket_elements, chunk);
    std::int64_t flat = 0;
    for (const Bucket& bucket : layout.buckets) {
      REQUIRE(bucket.flat.begin == flat);
      flat = bucket.flat.end;
      for (const BucketPiece& piece : bucket.pieces) {
        REQUIRE(piece.flat_begin >= bucket.flat.begin);
        REQUIRE(piece.flat_begin + piece.elements.size() <= bucket.flat.end);
      }
    }
    REQUIRE(flat == layout.n_elements);
    std::int64_t expected = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      REQUIRE(layout.tensor_begin[t] == expected);
      expected += aligned(tensors[t].n_elements);
    }
    REQUIRE(layout.n_elements == expected);
  }
}

TEST_CASE("a bucket is ready after the last layer that it holds a piece of") {
  for (const BucketGrid& grid : grids()) {
    const std::vector<FlatTensor> tensors = tensors_of(grid.kind);
    for (const Bucket& bucket : flat_layout(tensors, grid.bucket_elements, chunk).buckets) {
      std::int64_t last = bucket.ready_after_layer + 1000;
      for (const BucketPiece& piece : bucket.pieces) {
        last = std::min(last, tensors[static_cast<std::size_t>(piece.tensor)].layer);
      }
      REQUIRE(bucket.ready_after_layer == last);
    }
  }
}

TEST_CASE(
    "a bucket is no larger than asked for or than one chunk; one that is less than full is half "
    "full and ends with a part of a layer") {
  for (const BucketGrid& grid : grids()) {
    INFO("tensors " << grid.kind << ", buckets of " << grid.bucket_elements);
    const FlatLayout layout = flat_layout(tensors_of(grid.kind), grid.bucket_elements, chunk);
    const std::int64_t most = std::max(grid.bucket_elements, chunk);
    for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
      REQUIRE(layout.buckets[b].flat.size() < most + FlatLayout::alignment_elements);
      if (b + 1 == layout.buckets.size()) continue;
      const std::int64_t n = layout.buckets[b].flat.size();
      const BucketPiece& last = layout.buckets[b].pieces.back();
      const BucketPiece& next = layout.buckets[b + 1].pieces.front();
      const FlatTensor& before = layout.tensors[static_cast<std::size_t>(last.tensor)];
      const FlatTensor& after = layout.tensors[static_cast<std::size_t>(next.tensor)];
      const bool ends_part = before.layer != after.layer || before.part != after.part;
      // What follows did not fit, and its first chunk is all that a bucket may lack.
      const bool is_full = n + chunk > grid.bucket_elements;
      REQUIRE((is_full || (ends_part && 2 * n >= grid.bucket_elements)));
    }
  }
}

TEST_CASE("what the last layer completes does not hold up what was complete before") {
  // Two layers of two parts and a small last one, in elements; buckets of 400.
  const std::vector<FlatTensor> tensors{
      {320, 1, 0}, {256, 1, 1}, {320, 0, 0}, {256, 0, 1}, {64, -1}};
  const FlatLayout layout = flat_layout(tensors, 400, chunk);
  std::vector<Range> cut;
  for (const Bucket& bucket : layout.buckets) cut.push_back(bucket.flat);
  CHECK(cut == std::vector<Range>{{0, 320}, {320, 576}, {576, 896}, {896, 1152}, {1152, 1216}});
  CHECK(layout.buckets.back().ready_after_layer == -1);
}

TEST_CASE("the place of a tensor does not depend on the size of buckets") {
  for (int kind = 0; kind < 5; ++kind) {
    const FlatLayout whole = flat_layout(tensors_of(kind), 1 << 30, chunk);
    REQUIRE(whole.buckets.size() == 1);
    for (const std::int64_t n : {1, 100, 500}) {
      const FlatLayout cut = flat_layout(tensors_of(kind), n, chunk);
      REQUIRE(cut.tensor_begin == whole.tensor_begin);
      REQUIRE(cut.buckets.size() > whole.buckets.size());
    }
  }
}

TEST_CASE("a model of one element is one bucket, and a bucket of nothing is refused") {
  const FlatLayout layout = flat_layout({{1, 0}}, 1, chunk);
  REQUIRE(layout.buckets.size() == 1);
  CHECK(layout.buckets[0].flat == Range{0, 16});
  CHECK(layout.buckets[0].pieces[0].elements == Range{0, 1});
  CHECK_THROWS_AS(flat_layout({{1, 0}}, 0, chunk), ContractBroken);
}

TEST_CASE("no bucket has tensors of two units") {
  std::vector<FlatTensor> tensors;
  for (const int unit : {0, 0, 1, 2, 2, 0}) tensors.push_back({100, 0, 0, unit});
  const FlatLayout layout = flat_layout(tensors, 1 << 20, chunk);
  REQUIRE(layout.buckets.size() == 4);
  for (const Bucket& bucket : layout.buckets) {
    for (const BucketPiece& piece : bucket.pieces) {
      CHECK(tensors[piece.tensor].unit == tensors[bucket.pieces.front().tensor].unit);
    }
  }
}
