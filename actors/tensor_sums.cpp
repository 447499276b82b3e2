#include "actors/tensor_sums.h"

#include <algorithm>

#include "schedules/buckets.h"
#include "src/base/check.h"
#include "src/comm/collective.h"
#include "src/model/model_config.h"
#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

const WaitName wait_sum{"sum of a layer"};

/// Cuts of a vector of n elements that many ranks have: even ones, or (width > 0) between rows.
std::vector<std::int64_t> cuts_of(int size, std::int64_t n_elements, std::int64_t width) {
  if (width == 0) return even_cuts(n_elements, size, FlatLayout::alignment_elements);
  std::vector<std::int64_t> cuts{0};
  for (int rank = 0; rank < size; ++rank) {
    cuts.push_back(ModelConfig::TensorParallel{size, rank, true}.rows(n_elements / width).end *
                   width);
  }
  return cuts;
}

/// Rows stay with the rank whose number their piece has.
CollectiveForm form_of(int size, std::int64_t width) {
  return width == 0 ? best_form(size) : CollectiveForm::direct;
}

/// The most that any rank of the group receives at a time.
std::int64_t receive_elements(int size, std::int64_t n_elements, std::int64_t width) {
  if (size == 1 || n_elements == 0) return 0;
  const std::vector<std::int64_t> cuts = cuts_of(size, n_elements, width);
  std::int64_t most = 0;
  for (int rank = 0; rank < size; ++rank) {
    const CollectiveShape shape{rank, size, cuts};
    most = std::max(most, reduce_scatter_plan(form_of(size, width), shape).scratch_elements);
  }
  return most;
}

std::int64_t receive_bytes(int size, int n_kv_sharers, const TensorSums::Plan& plan) {
  // Where rows are cut, other vectors are summed too.
  return 4 * std::max({receive_elements(size, plan.max_elements, plan.row_width),
                       receive_elements(size, plan.max_elements, 0),
                       receive_elements(n_kv_sharers, plan.max_kv_elements, 0)});
}

std::int64_t sum_bytes(const TensorSums::Plan& plan) {
  return plan.is_low ? 4 * plan.max_elements : 0;
}

MutView flat(const MutView& x) {
  return {x.data(), x.dtype(), {x.n_elements()}, x.device()};
}

}  // namespace

std::int64_t tensor_sums_bytes(int size, int n_kv_sharers, const TensorSums::Plan& plan) {
  return receive_bytes(size, n_kv_sharers, plan) + sum_bytes(plan);
}

TensorSums::TensorSums(Group& group, Group& kv, Queue& reductions, Plan plan)
    : QueuedCalls(group.transport.loop(), WaitName("part of a sum", "stage"), "sum",
                  "sum of a layer"),
      group_(group),
      kv_(kv),
      reductions_(reductions),
      plan_(plan),
      receives_(receive_bytes(group.size(), kv.size(), plan), reductions.device()),
      sum_(sum_bytes(plan), reductions.device()) {}

void TensorSums::all_reduce(Queue& queue, MutView x) {
  enqueue(queue, Kind::reduce, x);
}

void TensorSums::reduce_scatter_rows(Queue& queue, MutView x) {
  CHECK_CONTRACT(x.shape()[1] == plan_.row_width, "the plan's rows are summed");
  enqueue(queue, Kind::reduce_rows, x);
}

void TensorSums::gather_rows(Queue& queue, MutView x) {
  CHECK_CONTRACT(x.shape()[1] == plan_.row_width, "the plan's rows are gathered");
  enqueue(queue, Kind::gather_rows, x);
}

void TensorSums::all_gather(Queue& queue, MutView all) {
  enqueue(queue, Kind::gather, all);
}

void TensorSums::all_reduce_kv(Queue& queue, MutView x) {
  enqueue(queue, Kind::reduce_kv, x);
}

void TensorSums::enqueue(Queue& queue, Kind kind, MutView x) {
  const Call call{kind, flat(x)};
  QueuedCalls::enqueue(queue, [this, call](std::int64_t key) { calls_.emplace(key, call); });
}

Task<> TensorSums::carry_out(std::int64_t key) {
  const Call call = calls_.extract(key).mapped();
  const std::int64_t n = call.x.n_elements();
  switch (call.kind) {
    case Kind::gather:
      co_await gather(call.x, cuts_of(group_.size(), n, n / group_.size()), key);
      break;
    case Kind::gather_rows:
      co_await gather(call.x, cuts_of(group_.size(), n, plan_.row_width), key);
      break;
    case Kind::reduce_kv:
      co_await reduce(kv_, call.x, Pieces::even, key);
      break;
    case Kind::reduce:
      co_await reduce(group_, call.x, Pieces::even, key);
      break;
    case Kind::reduce_rows:
      co_await reduce(group_, call.x, Pieces::rows, key);
      break;
  }
}

Task<> TensorSums::pass_queue(std::int64_t key) {
  Event passed(loop_, wait_sum, key);
  reductions_.notify([&passed] { passed.set(); });
  co_await passed;
}

Task<> TensorSums::reduce(Group& group, MutView x, Pieces pieces, std::int64_t key) {
  if (group.size() == 1) co_return;
  const Reduction& plan = reduction_of(group, pieces, x.n_elements());
  const CollectiveId id(plan_.tag, key, 0);
  const MutView scratch = receives_.view(Dtype::f32, {receives_.n_bytes() / 4});
  MutView sum = x;
  if (x.dtype() != Dtype::f32) {
    sum = sum_.view(Dtype::f32, {x.n_elements()});
    convert(reductions_, x, sum);
    co_await pass_queue(key);
  }
  co_await reduce_scatter(group, reductions_, plan.scatter, id, sum, scratch);
  if (pieces == Pieces::even) co_await llm::all_gather(group, plan.gather, id, sum);
  if (x.dtype() == Dtype::f32) co_return;
  const Range there = pieces == Pieces::even ? Range{0, x.n_elements()} : plan.scatter.owned;
  if (there.empty()) co_return;
  convert(reductions_, part(sum, there.begin, {there.size()}),
          part(x, there.begin, {there.size()}));
  co_await pass_queue(key);
}

Task<> TensorSums::gather(MutView all, const std::vector<std::int64_t>& cuts, std::int64_t key) {
  const CollectiveShape shape{group_.index, group_.size(), cuts};
  const std::vector<GatherRound> rounds = all_gather_plan(CollectiveForm::direct, shape);
  const CollectiveId id(plan_.tag, key, 0);
  co_await llm::all_gather(group_, rounds, id, all);
}

const TensorSums::Reduction& TensorSums::reduction_of(const Group& group, Pieces pieces,
                                                      std::int64_t n_elements) {
  const std::tuple name(group.size(), pieces, n_elements);
  const auto found = reductions_of_.find(name);
  if (found != reductions_of_.end()) return found->second;
  const std::int64_t width = pieces == Pieces::rows ? plan_.row_width : 0;
  const CollectiveShape shape{group.index, group.size(), cuts_of(group.size(), n_elements, width)};
  const CollectiveForm form = form_of(group.size(), width);
  Reduction plan{reduce_scatter_plan(form, shape), all_gather_plan(form, shape)};
  return reductions_of_.emplace(name, std::move(plan)).first->second;
}

}  // namespace llm
