#include "actors/gradient_reducer.h"

#include <algorithm>

namespace llm {
namespace {

// 64 KB of each rank's vector: two to eight of them fit a core's second cache.
constexpr std::int64_t in_place_elements = 16384;

CollectiveShape shape_of(const std::vector<Bucket>& buckets, std::size_t bucket, GroupPlace place,
                         const std::vector<std::vector<std::int64_t>>& piece_cuts) {
  if (!piece_cuts.empty()) return {place.rank, place.n_ranks, piece_cuts[bucket]};
  return {place.rank, place.n_ranks,
          even_cuts(buckets[bucket].flat.size(), place.n_ranks, FlatLayout::alignment_elements)};
}

}  // namespace

GradientReducer::GradientReducer(Loop& loop, Queue& queue, Plan plan, Group& group,
                                 const std::vector<Bucket>& buckets, MutView flat_gradients,
                                 Outbox out, LibrarySums* sums)
    : queue_(queue),
      plan_(std::move(plan)),
      group_(group),
      n_buckets_(static_cast<std::int64_t>(buckets.size())),
      gradients_(flat_gradients),
      out_(std::move(out)),
      grads_ready_(loop, WaitName("grads_ready", "stage"), buckets.size()),
      library_(sums) {
  const CollectiveForm form = best_form(group.size());
  std::int64_t scratch_elements = 0;
  for (std::int64_t b = 0; b < n_buckets_; ++b) {
    const auto bucket = static_cast<std::size_t>(b);
    const std::int64_t number = n_sums_;
    n_sums_ += buckets[bucket].is_own ? 0 : 1;
    if (b % plan_.n_lanes != plan_.lane) continue;
    Sums& sums = sums_.emplace_back();
    sums.bucket = b;
    sums.flat = buckets[bucket].flat;
    sums.is_own = buckets[bucket].is_own;
    sums.number = number;
    if (sums.is_own || library_ != nullptr) continue;
    const CollectiveShape shape =
        shape_of(buckets, bucket, {group.index, group.size()}, plan_.piece_cuts);
    if (plan_.shared) {
      sums.in_place = in_place_plan(shape, in_place_elements);
      continue;
    }
    sums.scatter = reduce_scatter_plan(form, shape);
    if (plan_.piece_cuts.empty()) sums.gather = all_gather_plan(form, shape);
    scratch_elements = std::max(scratch_elements, sums.scatter.scratch_elements);
  }
  scratch_ = Storage(scratch_elements * 4, queue.device());
}

Task<> GradientReducer::run() {
  if (plan_.shared) co_await map_peers();
  if (library_ != nullptr && plan_.lane == 0) co_await begin_sums(group_, first_id(), *library_);
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    for (const Sums& sums : sums_) {
      const std::int64_t key = step * n_buckets_ + sums.bucket;
      co_await grads_ready_.take(key);
      const auto bucket = static_cast<int>(sums.bucket);
      const CollectiveId id(plan_.first_tag + bucket % plan_.n_tags, step, bucket);
      if (!sums.is_own) co_await sum(sums, id);
      out_.reduced(key, Ready{});
    }
  }
}

Task<> GradientReducer::map_peers() {
  std::vector<SharedHandle> handles(static_cast<std::size_t>(group_.size()));
  handles[static_cast<std::size_t>(group_.index)] = *plan_.shared;
  co_await exchange_handles(group_, first_id(), handles);
  shared_ = GroupVectors(group_.index, gradients_, handles);
}

Task<> GradientReducer::sum(const Sums& sums, CollectiveId id) {
  if (library_ != nullptr) {
    LibrarySum whole = library_sum(sums, id.step);
    co_await sum_by_library(group_, *library_, id, std::move(whole));
    co_return;
  }
  if (plan_.shared) {
    const SumGoes goes = plan_.piece_cuts.empty() ? SumGoes::to_all : SumGoes::to_its_rank;
    co_await sum_in_place(group_, queue_, sums.in_place, id, shared_, sums.flat, goes);
    co_return;
  }
  const MutView vector = part(gradients_, sums.flat.begin, {sums.flat.size()});
  const MutView scratch = scratch_.view(Dtype::f32, {scratch_.n_bytes() / 4});
  co_await reduce_scatter(group_, queue_, sums.scatter, id, vector, scratch);
  co_await all_gather(group_, sums.gather, id, vector);
}

LibrarySum GradientReducer::library_sum(const Sums& sums, std::int64_t step) const {
  LibrarySum all;
  all.number = (step - plan_.first_step) * n_sums_ + sums.number;
  all.vector = part(gradients_, sums.flat.begin, {sums.flat.size()});
  if (!plan_.piece_cuts.empty()) {
    all.cuts = plan_.piece_cuts[static_cast<std::size_t>(sums.bucket)];
  }
  return all;
}

std::int64_t reducer_scratch_bytes(const std::vector<Bucket>& buckets, GroupPlace place,
                                   int n_lanes, int lane,
                                   const std::vector<std::vector<std::int64_t>>& piece_cuts) {
  std::int64_t elements = 0;
  for (std::size_t b = static_cast<std::size_t>(lane); b < buckets.size();
       b += static_cast<std::size_t>(n_lanes)) {
    if (buckets[b].is_own) continue;
    const CollectiveShape shape = shape_of(buckets, b, place, piece_cuts);
    elements =
        std::max(elements, reduce_scatter_plan(best_form(place.n_ranks), shape).scratch_elements);
  }
  return elements * 4;
}

}  // namespace llm
