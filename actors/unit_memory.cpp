#include "actors/unit_memory.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"

namespace llm {
namespace {

/// The bounds of all ranks' pieces of what is gathered of a bucket, in bytes.
std::vector<std::int64_t> gathered_cuts(const FlatLayout& layout, const ComputeLayout& compute,
                                        std::size_t bucket, int n_pieces) {
  if (!layout.buckets[bucket].is_own) return compute_cuts(layout, compute, bucket, n_pieces);
  return std::vector<std::int64_t>(static_cast<std::size_t>(n_pieces) + 1, 0);
}

/// By bucket, then by part of the table: the first byte of what is owned of it; and then the end.
std::vector<std::int64_t> owned_begins(const FlatLayout& layout, const ComputeLayout& compute,
                                       const UnitShape& shape) {
  std::vector<std::int64_t> begins = {0};
  const auto append = [&begins](std::int64_t n_bytes) {
    begins.push_back(begins.back() + Arena::bytes_for(Dtype::u8, {n_bytes}));
  };
  const auto k = static_cast<std::size_t>(shape.piece);
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const Range flat = layout.buckets[b].flat;
    if (layout.buckets[b].is_own) {
      append(compute.byte_of(layout, flat.end) - compute.byte_of(layout, flat.begin));
      continue;
    }
    const std::vector<std::int64_t> cuts = compute_cuts(layout, compute, b, shape.n_pieces);
    append(cuts[k + 1] - cuts[k]);
  }
  for (const std::vector<std::int64_t>& cuts : shape.table.cuts) {
    append((cuts[k + 1] - cuts[k]) * shape.table.element_bytes);
  }
  return begins;
}

std::size_t first_tensor(const Bucket& bucket) {
  return static_cast<std::size_t>(bucket.pieces.front().tensor);
}

}  // namespace

Storage owned_memory(std::int64_t n_bytes, Device device, bool is_offloaded) {
  if (!is_offloaded || n_bytes == 0) return Storage(n_bytes, is_offloaded ? Device::cpu : device);
  Storage storage = Storage::pinned(n_bytes);
  std::memset(storage.view(Dtype::u8, {n_bytes}).data(), 0, static_cast<std::size_t>(n_bytes));
  return storage;
}

std::int64_t owned_bytes(const FlatLayout& layout, const ComputeLayout& compute,
                         const UnitShape& shape) {
  return owned_begins(layout, compute, shape).back();
}

UnitLayout unit_layout(const FlatLayout& layout, const ComputeLayout& compute,
                       const UnitShape& shape) {
  UnitLayout units;
  units.n_bytes.assign(static_cast<std::size_t>(shape.n_units), 0);
  for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
    std::int64_t& n_bytes = units.n_bytes[static_cast<std::size_t>(layout.tensors[t].unit)];
    units.begin.push_back(n_bytes);
    if (layout.tensors[t].is_own) continue;
    n_bytes += compute.begin[t + 1] - compute.begin[t];
  }
  if (shape.table.n_bytes() == 0) return units;
  std::int64_t& n_bytes = units.n_bytes[static_cast<std::size_t>(shape.table.unit)];
  units.table_begin = n_bytes;
  n_bytes += Arena::bytes_for(Dtype::u8, {shape.table.n_bytes()});
  return units;
}

std::vector<UnitPart> unit_parts(const FlatLayout& layout, const ComputeLayout& compute,
                                 const UnitShape& shape, int unit) {
  const UnitLayout units = unit_layout(layout, compute, shape);
  const std::vector<std::int64_t> owned = owned_begins(layout, compute, shape);
  const auto k = static_cast<std::size_t>(shape.piece);
  std::vector<UnitPart> parts;
  const auto append = [&](std::size_t i, std::int64_t begin, std::vector<std::int64_t> cuts) {
    const std::int64_t n_owned = cuts[k + 1] - cuts[k];
    parts.push_back(
        {static_cast<std::int64_t>(i), {owned[i], owned[i] + n_owned}, begin, std::move(cuts)});
  };
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    const std::size_t first = first_tensor(bucket);
    if (layout.tensors[first].unit != unit) continue;
    const std::int64_t in_tensor =
        compute.byte_of(layout, bucket.flat.begin) - compute.begin[first];
    append(b, bucket.is_own ? 0 : units.begin[first] + in_tensor,
           gathered_cuts(layout, compute, b, shape.n_pieces));
  }
  if (shape.table.unit != unit) return parts;
  for (std::size_t i = 0; i < shape.table.cuts.size(); ++i) {
    const std::int64_t first = shape.table.cuts[i].front();
    std::vector<std::int64_t> cuts;
    for (const std::int64_t cut : shape.table.cuts[i]) {
      cuts.push_back((cut - first) * shape.table.element_bytes);
    }
    append(layout.buckets.size() + i, units.table_begin + first * shape.table.element_bytes,
           std::move(cuts));
  }
  return parts;
}

UnitMemory::UnitMemory(const FlatLayout& layout, ComputeLayout compute, const UnitShape& shape)
    : flat_(layout),
      compute_(std::move(compute)),
      shape_(shape),
      layout_(unit_layout(layout, compute_, shape_)),
      places_(static_cast<std::size_t>(shape_.n_units)),
      owned_begin_(owned_begins(layout, compute_, shape_)),
      owned_(owned_memory(owned_begin_.back(), shape_.device, shape_.is_offloaded)) {
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    CHECK_CONTRACT(!shape_.is_offloaded || !layout.buckets[b].is_own,
                   "ops read what is a rank's own where it is owned");
    const std::vector<std::int64_t> cuts = gathered_cuts(layout, compute_, b, shape_.n_pieces);
    owned_cut_.push_back(cuts[static_cast<std::size_t>(shape_.piece)]);
  }
}

void UnitMemory::place(int unit, MutView bytes) {
  CHECK_CONTRACT(bytes.empty() || bytes.n_bytes() >= unit_bytes(unit), "a unit fits its place");
  places_[static_cast<std::size_t>(unit)] = bytes;
}

MutView UnitMemory::tensor(std::int64_t tensor) const {
  const auto t = static_cast<std::size_t>(tensor);
  if (flat_.tensors[t].is_own) {
    // Its buckets, of whole norm chunks but for the last, lie one after the other.
    const std::int64_t n = compute_.begin[t + 1] - compute_.begin[t];
    return owned_.view(Dtype::u8, {n}, owned_byte(flat_.tensor_begin[t]));
  }
  const MutView& place = places_[static_cast<std::size_t>(flat_.tensors[t].unit)];
  if (place.empty()) return {};
  return part(place, layout_.begin[t], {compute_.begin[t + 1] - compute_.begin[t]});
}

MutView UnitMemory::table() const {
  const MutView& place = places_[static_cast<std::size_t>(shape_.table.unit)];
  if (place.empty() || shape_.table.n_bytes() == 0) return {};
  return part(place, layout_.table_begin, {shape_.table.n_bytes()});
}

std::int64_t UnitMemory::owned_byte(std::int64_t flat) const {
  const auto after = std::upper_bound(
      flat_.buckets.begin(), flat_.buckets.end(), flat,
      [](std::int64_t at, const Bucket& bucket) { return at < bucket.flat.begin; });
  const auto b = static_cast<std::size_t>(after - flat_.buckets.begin() - 1);
  return owned_begin_[b] + compute_.byte_of(flat_, flat) -
         compute_.byte_of(flat_, flat_.buckets[b].flat.begin) - owned_cut_[b];
}

MutView UnitMemory::owned(const OwnedPiece& piece) const {
  const Dtype dtype = compute_.dtype[static_cast<std::size_t>(piece.tensor)];
  return owned_.view(dtype, {piece.elements.size()}, owned_byte(piece.flat_begin));
}

std::vector<UnitMemory::TablePiece> UnitMemory::owned_table() const {
  std::vector<TablePiece> pieces;
  const auto k = static_cast<std::size_t>(shape_.piece);
  const std::vector<std::vector<std::int64_t>>& parts = shape_.table.cuts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Range elements{parts[i][k], parts[i][k + 1]};
    if (elements.empty()) continue;
    const std::int64_t begin = owned_begin_[flat_.buckets.size() + i];
    pieces.push_back(
        {elements, owned_.view(Dtype::u8, {elements.size() * shape_.table.element_bytes}, begin)});
  }
  return pieces;
}

}  // namespace llm
