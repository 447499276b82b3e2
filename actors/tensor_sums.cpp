#include "actors/tensor_sums.h"

#include <algorithm>

#include "schedules/buckets.h"
#include "src/comm/collective.h"
#include "src/rt/clock.h"
#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

const WaitName wait_sum{"sum of a layer"};

CollectiveShape shape_of(int rank, int size, std::int64_t n_elements) {
  return {rank, size, even_cuts(n_elements, size, FlatLayout::alignment_elements)};
}

/// The most that any rank of the group receives at a time.
std::int64_t receive_elements(int size, std::int64_t n_elements) {
  if (size == 1 || n_elements == 0) return 0;
  std::int64_t most = 0;
  for (int rank = 0; rank < size; ++rank) {
    most = std::max(
        most,
        reduce_scatter_plan(best_form(size), shape_of(rank, size, n_elements)).scratch_elements);
  }
  return most;
}

std::int64_t receive_bytes(int size, int n_kv_sharers, const TensorSums::Plan& plan) {
  return 4 * std::max(receive_elements(size, plan.max_elements),
                      receive_elements(n_kv_sharers, plan.max_kv_elements));
}

std::int64_t sum_bytes(const TensorSums::Plan& plan) {
  return plan.is_low ? 4 * plan.max_elements : 0;
}

MutView flat(const MutView& x) {
  return {x.data(), x.dtype(), {x.n_elements()}};
}

}  // namespace

std::int64_t tensor_sums_bytes(int size, int n_kv_sharers, const TensorSums::Plan& plan) {
  return receive_bytes(size, n_kv_sharers, plan) + sum_bytes(plan);
}

TensorSums::TensorSums(Group& group, Group& kv, Queue& reductions, Plan plan)
    : group_(group),
      kv_(kv),
      loop_(group.transport.loop()),
      reductions_(reductions),
      plan_(plan),
      computed_(loop_, WaitName("part of a sum", "stage"), 1 << 20),
      receives_(receive_bytes(group.size(), kv.size(), plan)),
      sum_(sum_bytes(plan)) {}

void TensorSums::all_reduce(Queue& queue, MutView x) {
  enqueue(queue, Kind::reduce, x);
}

void TensorSums::all_gather(Queue& queue, MutView all) {
  enqueue(queue, Kind::gather, all);
}

void TensorSums::all_reduce_kv(Queue& queue, MutView x) {
  enqueue(queue, Kind::reduce_kv, x);
}

void TensorSums::enqueue(Queue& queue, Kind kind, MutView x) {
  const std::int64_t key = n_enqueued_++;
  calls_.emplace(key, Call{kind, flat(x)});
  queue.notify([this, key] { computed_.put(key, Ready{}); });
  queue.wait([this, key] { return n_done_ > key; });
}

Task<> TensorSums::run() {
  for (std::int64_t key = 0;; ++key) {
    co_await computed_.take(key);
    const Call call = calls_.at(key);
    calls_.erase(key);
    const std::int64_t begin_ns = now_ns();
    co_await carry_out(call, key);
    if (loop_.trace != nullptr) {
      loop_.trace->slice(loop_.current()->id(), "sum", "sum of a layer", key, begin_ns, now_ns());
    }
    n_done_ = key + 1;
  }
}

Task<> TensorSums::carry_out(Call call, std::int64_t key) {
  switch (call.kind) {
    case Kind::gather:
      co_await gather(call.x, key);
      break;
    case Kind::reduce_kv:
      co_await reduce(kv_, call.x, key);
      break;
    case Kind::reduce: {
      if (call.x.dtype() == Dtype::f32) {
        co_await reduce(group_, call.x, key);
        break;
      }
      const MutView sum = sum_.view(Dtype::f32, {call.x.n_elements()});
      convert(reductions_, call.x, sum);
      co_await pass_queue(key);
      co_await reduce(group_, sum, key);
      convert(reductions_, sum, call.x);
      co_await pass_queue(key);
    }
  }
}

Task<> TensorSums::pass_queue(std::int64_t key) {
  Event passed(loop_, wait_sum, key);
  reductions_.notify([&passed] { passed.set(); });
  co_await passed;
}

Task<> TensorSums::reduce(Group& group, MutView x, std::int64_t key) {
  if (group.size() == 1) co_return;
  const Reduction& plan = reduction_of(group, x.n_elements());
  const CollectiveId id(plan_.tag, key, 0);
  const MutView scratch = receives_.view(Dtype::f32, {receives_.n_bytes() / 4});
  co_await reduce_scatter(group, reductions_, plan.scatter, id, x, scratch);
  co_await llm::all_gather(group, plan.gather, id, x);
}

Task<> TensorSums::gather(MutView all, std::int64_t key) {
  const std::int64_t n = all.n_elements() / group_.size();
  std::vector<std::int64_t> cuts;
  for (std::int64_t k = 0; k <= group_.size(); ++k) cuts.push_back(k * n);
  const CollectiveShape shape{group_.index, group_.size(), cuts};
  const std::vector<GatherRound> rounds = all_gather_plan(CollectiveForm::direct, shape);
  const CollectiveId id(plan_.tag, key, 0);
  co_await llm::all_gather(group_, rounds, id, all);
}

const TensorSums::Reduction& TensorSums::reduction_of(const Group& group, std::int64_t n_elements) {
  const auto found = reductions_of_.find({group.size(), n_elements});
  if (found != reductions_of_.end()) return found->second;
  const CollectiveShape shape = shape_of(group.index, group.size(), n_elements);
  const CollectiveForm form = best_form(group.size());
  Reduction plan{reduce_scatter_plan(form, shape), all_gather_plan(form, shape)};
  return reductions_of_.emplace(std::pair(group.size(), n_elements), std::move(plan)).first->second;
}

}  // namespace llm
