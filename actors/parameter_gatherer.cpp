#include "actors/parameter_gatherer.h"

#include "src/comm/collective.h"

namespace llm {

ParameterGatherer::ParameterGatherer(Group& group, Plan plan, const ModelState& state, Outbox out)
    : group_(group),
      plan_(plan),
      out_(std::move(out)),
      updated_(group.transport.loop(), WaitName("updated", "optimizer_shard"),
               state.layout().buckets.size()) {
  for (std::size_t b = 0; b < state.layout().buckets.size(); ++b) {
    if (state.layout().buckets[b].is_own) {
      gathers_.emplace_back();  // no rounds: what ops read is the rank's own
      continue;
    }
    const CollectiveShape shape{
        group.index, group.size(),
        compute_cuts(state.layout(), state.compute_layout(), b, group.size())};
    gathers_.push_back(
        {state.compute_bytes(state.layout().buckets[b].flat), all_gather_plan(plan.form, shape)});
  }
}

Task<> ParameterGatherer::run() {
  const auto n_buckets = static_cast<std::int64_t>(gathers_.size());
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    bool stop = false;
    for (std::int64_t b = n_buckets; b-- > 0;) {
      const ParametersUpdated updated = co_await updated_.take(step * n_buckets + b);
      stop |= updated.stop;
      const Gather& gather = gathers_[static_cast<std::size_t>(b)];
      const auto bucket = static_cast<int>(b);
      const CollectiveId id(plan_.first_tag + bucket % plan_.n_tags, step, bucket);
      co_await all_gather(group_, gather.rounds, id, gather.bytes);
      out_.gathered((step + 1) * n_buckets + b, Ready{});
    }
    if (stop) co_return;
  }
}

GatheredParameters::GatheredParameters(Loop& loop, const ModelState& state, std::int64_t first_step)
    : gathered_(loop, WaitName("gathered", "parameter_gatherer"),
                2 * state.layout().buckets.size()),
      step_of_(state.layout().buckets.size(), first_step) {
  const Range layers = all_layers(state.config());
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    buckets_.emplace(layer, state.buckets_of(layer));
  }
}

Task<> GatheredParameters::acquire(std::int64_t step, std::int64_t layer) {
  const auto n_buckets = static_cast<std::int64_t>(step_of_.size());
  for (const std::size_t b : buckets_.at(layer)) {
    if (step_of_[b] >= step) continue;
    co_await gathered_.take(step * n_buckets + static_cast<std::int64_t>(b));
    step_of_[b] = step;
  }
}

}  // namespace llm
