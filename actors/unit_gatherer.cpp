#include "actors/unit_gatherer.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/comm/collective.h"
#include "src/rt/clock.h"
#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

const WaitName wait_part_copied{"owned pieces copied"};

// Ports never wait; what bounds these messages is the plan of gathers.
constexpr std::size_t unbounded = 1 << 20;

}  // namespace

std::vector<std::int64_t> UsePlan::slot_bytes() const {
  std::vector<std::int64_t> bytes = step.gathers.slot_bytes;
  for (const UseList& list : chunks) {
    const std::vector<std::int64_t>& own = list.gathers.slot_bytes;
    bytes.resize(std::max(bytes.size(), own.size()));
    for (std::size_t s = 0; s < own.size(); ++s) bytes[s] = std::max(bytes[s], own[s]);
  }
  return bytes;
}

UseCursor::UseCursor(const UsePlan& plan) : plan_(plan), step_(plan.first_step) {}

const UseList& UseCursor::list() const {
  if (in_round_ < 0) return plan_.step;
  return plan_.chunks[static_cast<std::size_t>(plan_.order[static_cast<std::size_t>(in_round_)])];
}

bool UseCursor::is_own() const {
  return in_round_ < 0 || plan_.is_own[static_cast<std::size_t>(in_round_)];
}

void UseCursor::advance() {
  first_gather_ += static_cast<std::int64_t>(list().gathers.gathers.size());
  const auto n_order = static_cast<std::int64_t>(plan_.order.size());
  const bool validates = plan_.validation.due_after(step_) && n_order > 0;
  if (validates && in_round_ + 1 < n_order) {
    ++in_round_;
    return;
  }
  in_round_ = -1;
  ++step_;
}

UnitGatherer::UnitGatherer(Group& group, Queue& copies, Queue& compute, Plan plan,
                           ModelState& state)
    : group_(group),
      loop_(group.transport.loop()),
      copies_(copies),
      compute_(compute),
      plan_(std::move(plan)),
      state_(state),
      updated_(loop_, WaitName("updated", "optimizer_shard"), state.layout().buckets.size()),
      table_received_(loop_, WaitName("table received", "tied_embedding")),
      begun_(loop_, WaitName("use of a unit", "stage"), unbounded),
      gathered_(loop_, WaitName("unit", "unit_gatherer"), unbounded),
      freed_(loop_, WaitName("memory of a unit", "stage"), unbounded),
      version_(state.layout().buckets.size() + 1, plan_.uses.first_step),
      use_(plan_.uses) {
  const UnitMemory& units = *state_.units();
  for (int unit = 0; unit < units.n_units(); ++unit) {
    std::vector<Part>& parts = parts_.emplace_back();
    for (const UnitPart& one : units.parts(unit)) {
      const CollectiveShape shape{group_.index, group_.size(), one.cuts};
      parts.push_back({one, all_gather_plan(plan_.form, shape)});
    }
  }
  for (const std::int64_t n_bytes : plan_.uses.slot_bytes()) {
    slots_.emplace_back(n_bytes, state_.device());
  }
  in_slot_.assign(slots_.size(), -1);
}

MutView UnitGatherer::slot_of(const UnitGather& gather) const {
  return slots_[static_cast<std::size_t>(gather.slot)].view(
      Dtype::u8, {state_.units()->unit_bytes(gather.unit)});
}

Task<> UnitGatherer::run() {
  for (UseCursor cursor(plan_.uses); !cursor.is_done(); cursor.advance()) {
    std::int64_t key = cursor.first_gather();
    for (const UnitGather& one : cursor.list().gathers.gathers) {
      const std::vector<Part>& parts = parts_[static_cast<std::size_t>(one.unit)];
      const bool goes_on = co_await wait_for_version(parts, cursor.version());
      if (!goes_on) co_return;
      if (!cursor.is_own()) begun_.put(key, Ready{});
      if (key >= plan_.policy.n_ahead) co_await begun_.take(key - plan_.policy.n_ahead);
      std::int64_t& in_slot = in_slot_[static_cast<std::size_t>(one.slot)];
      if (in_slot >= 0) co_await freed_.take(in_slot);
      in_slot = key;
      co_await gather(parts, slot_of(one), key);
      if (cursor.is_own()) {
        gathered_.put(key, Ready{});
      } else {
        freed_.put(key, Ready{});
      }
      ++key;
    }
  }
}

Task<bool> UnitGatherer::wait_for_version(const std::vector<Part>& parts, std::int64_t version) {
  const auto n_buckets = static_cast<std::int64_t>(state_.layout().buckets.size());
  for (const Part& one : parts) {
    const std::int64_t b = std::min(one.part.bucket, n_buckets);
    std::int64_t& there = version_[static_cast<std::size_t>(b)];
    if (there >= version) continue;
    if (b == n_buckets) {
      co_await table_received_.take(version);
    } else {
      const ParametersUpdated updated = co_await updated_.take((version - 1) * n_buckets + b);
      if (updated.stop) co_return false;
    }
    there = version;
  }
  co_return true;
}

Task<> UnitGatherer::gather(const std::vector<Part>& parts, MutView unit, std::int64_t key) {
  const auto bytes_of = [&unit](const UnitPart& one) {
    return part(unit, one.begin, {one.cuts.back()});
  };
  const int piece = piece_of_rank(plan_.form, group_.index, group_.size());
  for (const Part& one : parts) {
    if (one.part.owned.empty()) continue;
    const std::int64_t begin = one.part.cuts[static_cast<std::size_t>(piece)];
    copy(copies_, state_.units()->owned(one.part),
         part(bytes_of(one.part), begin, {one.part.owned.size()}));
  }
  Event copied(loop_, wait_part_copied, key);
  copies_.notify([&copied] { copied.set(); });
  co_await copied;
  const std::int64_t begin_ns = now_ns();
  for (const Part& one : parts) {
    const auto bucket = static_cast<int>(one.part.bucket);
    const CollectiveId id(plan_.first_tag + bucket % plan_.n_tags, key, bucket);
    const MutView bytes = bytes_of(one.part);
    co_await all_gather(group_, one.rounds, id, bytes);
  }
  if (loop_.trace != nullptr) {
    loop_.trace->slice(loop_.current()->id(), "gather", "unit", key, begin_ns, now_ns());
  }
}

Task<> UnitGatherer::acquire(std::int64_t step, std::int64_t layer) {
  while (!use_.is_own() || n_acquired_ == use_.list().layers.size()) {
    CHECK_CONTRACT(n_released_ == n_acquired_, "a list's layers are released before the next list");
    use_.advance();
    n_acquired_ = 0;
    n_released_ = 0;
  }
  CHECK_CONTRACT(
      !use_.is_done() && use_.version() == step && use_.list().layers[n_acquired_] == layer,
      "layers are used in the planned order");
  const GatherPlan& plan = use_.list().gathers;
  const Range begins = plan.begin_with[n_acquired_++];
  for (std::int64_t g = begins.begin; g < begins.end; ++g) {
    begun_.put(use_.first_gather() + g, Ready{});
  }
  for (std::int64_t g = begins.begin; g < begins.end; ++g) {
    co_await gathered_.take(use_.first_gather() + g);
    const UnitGather& one = plan.gathers[static_cast<std::size_t>(g)];
    state_.units()->place(one.unit, slot_of(one));
  }
}

void UnitGatherer::release(std::int64_t layer) {
  CHECK_CONTRACT(n_released_ < n_acquired_ && use_.list().layers[n_released_] == layer,
                 "what is released was acquired, in the same order");
  const GatherPlan& plan = use_.list().gathers;
  for (const int g : plan.end_with[n_released_]) {
    state_.units()->place(plan.gathers[static_cast<std::size_t>(g)].unit, MutView());
    const std::int64_t key = use_.first_gather() + g;
    compute_.notify([this, key] { freed_.put(key, Ready{}); });
  }
  ++n_released_;
}

}  // namespace llm
