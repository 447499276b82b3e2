#include "actors/tied_embedding.h"

#include <algorithm>
#include <deque>
#include <string>

#include "src/rt/event.h"

namespace llm {

TiedEmbedding::TiedEmbedding(Transport& transport, Plan plan, const ModelState& state,
                             Port<ParametersUpdated> parameters_updated)
    : transport_(transport),
      plan_(plan),
      state_(state),
      owns_(state.tied_tensor() >= 0),
      wait_(owns_ ? "embedding sent" : "embedding", "rank " + std::to_string(plan.peer)),
      out_(std::move(parameters_updated)),
      parameters_updated_(transport.loop(), WaitName("parameters_updated", "optimizer_shard")),
      gathered_(transport.loop(), WaitName("gathered", "parameter_gatherer")) {
  if (plan_.is_shared_out) {
    tables_ = state_.owned_table();
  } else {
    tables_ = {owns_ ? state_.tied_embedding() : state_.borrowed_embedding()};
  }
  if (!owns_ || !plan_.is_gathered) return;
  const std::vector<Bucket>& buckets = state_.layout().buckets;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const BucketPiece& piece : buckets[b].pieces) {
      if (piece.tensor == state_.tied_tensor()) buckets_.push_back(static_cast<std::int64_t>(b));
    }
  }
}

void TiedEmbedding::gathered(std::int64_t key) {
  const auto n_buckets = static_cast<std::int64_t>(state_.layout().buckets.size());
  if (std::count(buckets_.begin(), buckets_.end(), key % n_buckets) > 0) {
    gathered_.put(key, Ready{});
  }
}

Task<> TiedEmbedding::run() {
  for (std::int64_t step = plan_.first_step; step < plan_.n_steps; ++step) {
    const ParametersUpdated updated = co_await parameters_updated_.take(step + 1);
    if (owns_) out_(step + 1, updated);
    co_await exchange(step);
    if (!owns_) out_(step + 1, updated);
    if (updated.stop) co_return;
  }
}

Task<> TiedEmbedding::exchange(std::int64_t step) {
  const auto n_buckets = static_cast<std::int64_t>(state_.layout().buckets.size());
  for (const std::int64_t b : buckets_) co_await gathered_.take((step + 1) * n_buckets + b);
  std::deque<Event> done;
  for (const MutView& table : tables_) {
    const Header header(MessageKind::embedding, step, static_cast<std::int32_t>(done.size()), 0);
    Event& moved = done.emplace_back(transport_.loop(), wait_, step);
    if (owns_) {
      transport_.send(plan_.peer, plan_.tag, header, table, moved);
    } else {
      transport_.receive(plan_.peer, plan_.tag, header, table, moved);
    }
  }
  for (Event& moved : done) co_await moved;
}

}  // namespace llm
