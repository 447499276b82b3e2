#include "actors/gradient_reducer.h"

#include <algorithm>

#include "src/comm/collective.h"

namespace llm {
namespace {

CollectiveShape shape_of(const Bucket& bucket, GroupPlace place) {
  return {place.rank, place.n_ranks,
          even_cuts(bucket.flat.size(), place.n_ranks, FlatLayout::alignment_elements)};
}

}  // namespace

GradientReducer::GradientReducer(Loop& loop, Queue& queue, Plan plan, Group& group,
                                 const std::vector<Bucket>& buckets, MutView flat_gradients,
                                 Outbox out)
    : queue_(queue),
      plan_(plan),
      group_(group),
      n_buckets_(static_cast<std::int64_t>(buckets.size())),
      out_(std::move(out)),
      grads_ready_(loop, WaitName("grads_ready", "stage"), buckets.size()) {
  const CollectiveForm form = best_form(group.size());
  std::int64_t scratch_elements = 0;
  for (std::int64_t b = plan.lane; b < n_buckets_; b += plan.n_lanes) {
    const Bucket& bucket = buckets[static_cast<std::size_t>(b)];
    const CollectiveShape shape = shape_of(bucket, {group.index, group.size()});
    sums_.push_back({b, part(flat_gradients, bucket.flat.begin, {bucket.flat.size()}),
                     reduce_scatter_plan(form, shape), all_gather_plan(form, shape)});
    scratch_elements = std::max(scratch_elements, sums_.back().scatter.scratch_elements);
  }
  scratch_ = Storage(scratch_elements * 4);
}

Task<> GradientReducer::run() {
  const MutView scratch = scratch_.view(Dtype::f32, {scratch_.n_bytes() / 4});
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    for (const Sums& sum : sums_) {
      const std::int64_t key = step * n_buckets_ + sum.bucket;
      co_await grads_ready_.take(key);
      const auto bucket = static_cast<int>(sum.bucket);
      const CollectiveId id(plan_.first_tag + bucket % plan_.n_tags, step, bucket);
      co_await reduce_scatter(group_, queue_, sum.scatter, id, sum.vector, scratch);
      co_await all_gather(group_, sum.gather, id, sum.vector);
      out_.reduced(key, Ready{});
    }
  }
}

std::int64_t reducer_scratch_bytes(const std::vector<Bucket>& buckets, GroupPlace place,
                                   int n_lanes, int lane) {
  std::int64_t elements = 0;
  for (std::size_t b = static_cast<std::size_t>(lane); b < buckets.size();
       b += static_cast<std::size_t>(n_lanes)) {
    const CollectiveShape shape = shape_of(buckets[b], place);
    elements =
        std::max(elements, reduce_scatter_plan(best_form(place.n_ranks), shape).scratch_elements);
  }
  return elements * 4;
}

}  // namespace llm
