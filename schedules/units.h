#pragma once
#include <cstdint>
#include <vector>

#include "src/base/range.h"

namespace llm {

/// Layers whose parameters are gathered and given back as one, where the ranks of a data-parallel
/// group own a part of each parameter (ZeRO 3, FSDP).
struct Unit {
  std::vector<std::int64_t> layers;
  std::int64_t n_parameters = 0;
  bool operator==(const Unit&) const = default;
};

struct LayerParameters {
  std::int64_t layer;
  std::int64_t n_parameters;
};

/// A layer of at least `min_parameters` is a unit, the others together are one; 0: all are one.
/// Units in the order of their first layers.
std::vector<Unit> make_units(const std::vector<LayerParameters>& layers,
                             std::int64_t min_parameters);
/// The index of the unit that has `layer`.
int unit_of(const std::vector<Unit>& units, std::int64_t layer);

/// When units are there.
struct GatherPolicy {
  int n_ahead = 1;  ///< gathers that may be under way or wait for their use (fsdp_prefetch_units)
  /// A unit is given back when the next use is another's, and gathered again for its next one;
  /// otherwise it stays from its first use to its last.
  bool reshard = true;
};

/// One gather: the unit is there for the uses first_use .. last_use.
struct UnitGather {
  int unit;
  int first_use;
  int last_use;
  int slot;  ///< whose memory it has meanwhile
  bool operator==(const UnitGather&) const = default;
};

/// What is gathered for a list of uses, in order, and where. Memory is planned: gather g may begin
/// once the use that needs gather g - n_ahead has, and once its slot is free.
struct GatherPlan {
  std::vector<UnitGather> gathers;
  std::vector<std::int64_t> slot_bytes;
  std::vector<Range> begin_with;           ///< by use: the gathers whose first use it is
  std::vector<std::vector<int>> end_with;  ///< by use: those whose last use it is
};

/// `uses`: by position, the units that it reads. `unit_bytes`: by unit. `done_with`: by position,
/// the last use that may begin before this one's work is done, which its units' memory is kept
/// for: a later one where two actions alternate; empty: always itself.
GatherPlan plan_gathers(const std::vector<std::vector<int>>& uses,
                        const std::vector<std::int64_t>& unit_bytes, GatherPolicy policy,
                        std::vector<int> done_with = {});

}  // namespace llm
