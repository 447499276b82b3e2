#include "actors/tied_embedding.h"

#include <string>

#include "src/rt/event.h"

namespace llm {

TiedEmbedding::TiedEmbedding(Transport& transport, Plan plan, const ModelState& state,
                             Port<ParametersUpdated> parameters_updated)
    : transport_(transport),
      plan_(plan),
      state_(state),
      owns_(state.borrowed_embedding().empty()),
      wait_(owns_ ? "embedding sent" : "embedding", "rank " + std::to_string(plan.peer)),
      out_(std::move(parameters_updated)),
      parameters_updated_(transport.loop(), WaitName("parameters_updated", "optimizer_shard")) {}

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
  const Header header(MessageKind::embedding, step, 0, 0);
  Event done(transport_.loop(), wait_, step);
  if (owns_) {
    transport_.send(plan_.peer, plan_.tag, header, state_.tied_embedding(), done);
  } else {
    transport_.receive(plan_.peer, plan_.tag, header, state_.borrowed_embedding(), done);
  }
  co_await done;
}

}  // namespace llm
