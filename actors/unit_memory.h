#pragma once
#include <cstdint>
#include <vector>

#include "actors/compute_layout.h"
#include "schedules/buckets.h"
#include "schedules/shards.h"
#include "tensor/storage.h"

namespace llm {

/// Where what ops read lies while its units are there: the tensors of a unit one after the other,
/// but for those that are the rank's own (Bucket::is_own), which always lie where they are owned.
struct UnitLayout {
  std::vector<std::int64_t> begin;    ///< by tensor of the layout: its first byte in its unit
  std::vector<std::int64_t> n_bytes;  ///< by unit
  std::int64_t table_begin = 0;       ///< of a table that another rank updates, in its unit
};

/// A tied embedding that the head's rank updates, on the rank that embeds with it.
struct BorrowedTable {
  int unit = 0;
  std::int64_t element_bytes = 0;  ///< 0: there is none
  /// tensor_cuts() of the table on the rank that updates it.
  std::vector<std::vector<std::int64_t>> cuts = {};
  std::int64_t n_bytes() const { return cuts.empty() ? 0 : cuts.back().back() * element_bytes; }
};

/// How a rank's parameters are shared out by unit.
struct UnitShape {
  int n_units = 1;
  int n_pieces = 1;  ///< of each bucket, one a rank
  int piece = 0;
  BorrowedTable table = {};
  Device device = Device::cpu;
  bool is_offloaded = false;  ///< what is owned lies on the host, in pinned memory
};

/// Zero-filled memory of what a rank owns.
Storage owned_memory(std::int64_t n_bytes, Device device, bool is_offloaded);

UnitLayout unit_layout(const FlatLayout& layout, const ComputeLayout& compute,
                       const UnitShape& shape);

/// What a unit is gathered from: as bytes, a bucket's or a part of a borrowed table. Of a bucket
/// that is the rank's own nothing: it is a part because the unit waits for its update.
struct UnitPart {
  std::int64_t bucket;             ///< of the layout; the parts of a table follow the last
  Range owned;                     ///< this rank's piece, in the owned bytes
  std::int64_t begin;              ///< of the part, in the unit
  std::vector<std::int64_t> cuts;  ///< the bounds of all ranks' pieces, in the part
};
std::vector<UnitPart> unit_parts(const FlatLayout& layout, const ComputeLayout& compute,
                                 const UnitShape& shape, int unit);

/// Bytes of what a rank owns, as ops read it.
std::int64_t owned_bytes(const FlatLayout& layout, const ComputeLayout& compute,
                         const UnitShape& shape);

/// What the ranks of a data-parallel group own a part of each, and gather by unit (ZeRO 3): the
/// owned bytes, for good, and where a unit is while it is there.
class UnitMemory {
 public:
  UnitMemory(const FlatLayout& layout, ComputeLayout compute, const UnitShape& shape);

  int n_units() const { return shape_.n_units; }
  std::int64_t unit_bytes(int unit) const {
    return layout_.n_bytes[static_cast<std::size_t>(unit)];
  }
  /// From now on the unit lies in `bytes`; empty: nowhere.
  void place(int unit, MutView bytes);
  /// A tensor's bytes; empty where its unit is nowhere. The rank's own are always there.
  MutView tensor(std::int64_t tensor) const;
  /// The borrowed table's.
  MutView table() const;
  /// An owned piece's bytes.
  MutView owned(const OwnedPiece& piece) const;
  /// The borrowed table's owned elements and their bytes, by part that is not empty.
  struct TablePiece {
    Range elements;
    MutView bytes;
  };
  std::vector<TablePiece> owned_table() const;
  std::vector<UnitPart> parts(int unit) const { return unit_parts(flat_, compute_, shape_, unit); }
  View owned(const UnitPart& one) const {
    return owned_.view(Dtype::u8, {one.owned.size()}, one.owned.begin);
  }

 private:
  /// Where an owned element of the layout lies.
  std::int64_t owned_byte(std::int64_t flat) const;

  const FlatLayout& flat_;
  const ComputeLayout compute_;
  const UnitShape shape_;
  const UnitLayout layout_;
  std::vector<MutView> places_;            // by unit
  std::vector<std::int64_t> owned_begin_;  // by bucket, then by part of the table
  std::vector<std::int64_t> owned_cut_;    // by bucket: the owned piece's first byte in it
  Storage owned_;
};

}  // namespace llm
