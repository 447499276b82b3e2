#include <algorithm>

#include "actors/stage.h"
#include "src/rt/clock.h"

namespace llm {
Task<> Stage::validate(std::int64_t step, std::int64_t round) {
  const std::int64_t n = plan_.n_validations();
  const std::int64_t n_buffers = plan_.n_validation_buffers;
  for (std::int64_t i = 0; i < std::min(n, n_buffers); ++i) {
    out_.validation_wanted(round * n + i, Ready{});
  }
  std::map<std::int64_t, int> n_done;
  for (const ValidationPart part : validation_order(plan_.pipeline, plan_.rank, n)) {
    const std::int64_t i = part.microbatch;
    co_await validate_one(step, round, part.chunk, i);
    if (++n_done[i] < plan_.pipeline.n_chunks) continue;
    held_validation_.erase(i);
    if (i + n_buffers < n) out_.validation_wanted(round * n + i + n_buffers, Ready{});
  }
}

Task<Leased> Stage::validation_for(int c, std::int64_t k, std::int64_t n_rows) {
  Chunk& own = chunk(c);
  if (own.stage == 0) {
    const Leased fresh = co_await own_ring_.take(n_rows);
    co_return fresh;
  }
  const Leased arrived = co_await own.validation_activations.take(k);
  co_return arrived;
}

Task<> Stage::validate_one(std::int64_t step, std::int64_t round, int c, std::int64_t i) {
  Chunk& own = chunk(c);
  const std::int64_t k = round * plan_.n_validations() + i;
  if (!held_validation_.contains(i)) {
    const Microbatch microbatch = co_await validation_.take(k);
    held_validation_.emplace(i, microbatch);
  }
  const Leased x = co_await validation_for(c, k, validation_rows_[static_cast<std::size_t>(i)]);
  LossSum loss;
  const std::int64_t begin_ns = now_ns();
  co_await compute_.validate(step + 1, c, held_validation_.at(i), x.tensor, loss);
  co_await computed("V", i, begin_ns);
  if (is_last(own.stage)) {
    x.lease.give_back();
    const std::int64_t first =
        round * plan_.validation.n_microbatches() + plan_.validation_microbatches.begin;
    const LossReport report{loss.sum, loss.n_valid};
    if (i < plan_.validation_microbatches.size()) out_.validation_loss(first + i, report);
  } else if (own.activation_sender) {
    const auto index = static_cast<std::int32_t>(plan_.n_microbatches() + i);
    own.activation_sender->send(Outgoing(step, index, x));
  } else {
    chunk_of_stage(own.stage + 1).validation_activations.put(k, x);
  }
}

}  // namespace llm
