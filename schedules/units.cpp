#include "schedules/units.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "src/base/check.h"

namespace llm {
namespace {

bool reads(const std::vector<int>& use, int unit) {
  return std::count(use.begin(), use.end(), unit) > 0;
}

/// The last use of the unit for which it stays, from use `first` on.
int last_use_of(const std::vector<std::vector<int>>& uses, const std::vector<int>& done_with,
                int unit, int first, bool reshard) {
  int last = first;
  for (int use = first + 1; use < static_cast<int>(uses.size()); ++use) {
    if (reads(uses[static_cast<std::size_t>(use)], unit)) last = use;
    const bool is_done = use >= done_with[static_cast<std::size_t>(last)];
    if (reshard && last != use && is_done) break;
  }
  return last;
}

/// By gather: the use at whose begin it may begin.
std::vector<int> first_begins(const std::vector<UnitGather>& gathers, int n_ahead) {
  std::vector<int> begins;
  for (std::size_t g = 0; g < gathers.size(); ++g) {
    const std::ptrdiff_t before = static_cast<std::ptrdiff_t>(g) - n_ahead;
    begins.push_back(before < 0 ? 0 : gathers[static_cast<std::size_t>(before)].first_use);
  }
  return begins;
}

/// The uses during which a slot is taken, by their first: disjoint, so that neighbours tell.
using TakenUses = std::map<int, int>;

bool is_free(const TakenUses& taken, int first, int last) {
  const auto after = taken.upper_bound(last);
  return after == taken.begin() || std::prev(after)->second < first;
}

}  // namespace

std::vector<Unit> make_units(const std::vector<LayerParameters>& layers,
                             std::int64_t min_parameters) {
  std::vector<Unit> units;
  int rest = -1;  // the unit of the small layers
  for (const LayerParameters& one : layers) {
    const bool is_own = min_parameters > 0 && one.n_parameters >= min_parameters;
    if (is_own || rest < 0) {
      if (!is_own) rest = static_cast<int>(units.size());
      units.push_back({});
    }
    Unit& unit = is_own ? units.back() : units[static_cast<std::size_t>(rest)];
    unit.layers.push_back(one.layer);
    unit.n_parameters += one.n_parameters;
  }
  return units;
}

int unit_of(const std::vector<Unit>& units, std::int64_t layer) {
  const auto found = std::find_if(units.begin(), units.end(), [layer](const Unit& unit) {
    return std::count(unit.layers.begin(), unit.layers.end(), layer) > 0;
  });
  CHECK_CONTRACT(found != units.end(), "each layer of a rank is in a unit");
  return static_cast<int>(found - units.begin());
}

GatherPlan plan_gathers(const std::vector<std::vector<int>>& uses,
                        const std::vector<std::int64_t>& unit_bytes, GatherPolicy policy,
                        std::vector<int> done_with) {
  if (done_with.empty()) {
    done_with.resize(uses.size());
    std::iota(done_with.begin(), done_with.end(), 0);
  }
  GatherPlan plan;
  plan.end_with.resize(uses.size());
  std::vector<int> there_until(unit_bytes.size(), -1);
  for (int use = 0; use < static_cast<int>(uses.size()); ++use) {
    const auto begin = static_cast<std::int64_t>(plan.gathers.size());
    for (const int unit : uses[static_cast<std::size_t>(use)]) {
      int& until = there_until[static_cast<std::size_t>(unit)];
      if (until >= use) continue;
      until = last_use_of(uses, done_with, unit, use, policy.reshard);
      plan.end_with[static_cast<std::size_t>(until)].push_back(
          static_cast<int>(plan.gathers.size()));
      plan.gathers.push_back({unit, use, until, -1});
    }
    plan.begin_with.push_back({begin, static_cast<std::int64_t>(plan.gathers.size())});
  }
  const std::vector<int> begins = first_begins(plan.gathers, policy.n_ahead);
  // The largest first: what comes later fits into the slots that are there.
  std::vector<std::size_t> order(plan.gathers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto bytes_of = [&](std::size_t g) {
    return unit_bytes[static_cast<std::size_t>(plan.gathers[g].unit)];
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(-bytes_of(a), a) < std::pair(-bytes_of(b), b);
  });
  std::vector<TakenUses> slots;
  for (const std::size_t g : order) {
    UnitGather& gather = plan.gathers[g];
    const int last = done_with[static_cast<std::size_t>(gather.last_use)];
    auto slot = std::find_if(slots.begin(), slots.end(), [&](const TakenUses& taken) {
      return is_free(taken, begins[g], last);
    });
    if (slot == slots.end()) {
      slot = slots.emplace(slots.end());
      plan.slot_bytes.push_back(bytes_of(g));
    }
    slot->emplace(begins[g], last);
    gather.slot = static_cast<int>(slot - slots.begin());
  }
  return plan;
}

}  // namespace llm
