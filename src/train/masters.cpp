#include "src/train/masters.h"

#include <algorithm>

#include "src/model/tensor_slice.h"
#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

constexpr int root = 0;
const WaitName wait_piece{"parameter", "its owner"};

Header header_of(std::size_t canonical, std::int32_t n) {
  return {MessageKind::parameter, static_cast<std::int64_t>(canonical), n, 0};
}

}  // namespace

MasterServer::MasterServer(Transport& transport, int tag, MasterPieces own, const ModelState& state)
    : transport_(transport),
      tag_(tag),
      own_(std::move(own)),
      state_(state),
      requests_(transport.loop(), WaitName("request for a parameter", "rank 0")) {}

Task<> MasterServer::run() {
  for (std::int64_t k = 0;; ++k) {
    const MasterRequest request = co_await requests_.take(k);
    if (request.canonical < 0) co_return;
    std::int32_t n = 0;
    for (const MasterPieces::Piece& piece : own_.pieces) {
      if (static_cast<std::int64_t>(piece.canonical) != request.canonical) continue;
      Event sent(transport_.loop(), wait_piece, request.canonical);
      transport_.send(root, tag_, header_of(piece.canonical, n++), state_.master(piece.owned),
                      sent);
      co_await sent;
    }
  }
}

MasterFetcher::MasterFetcher(ControlPlane& control, Transport& transport, Plan plan,
                             const ModelState& state)
    : transport_(transport),
      plan_(std::move(plan)),
      state_(state),
      n_asked_(plan_.sources.size(), 0) {
  std::int64_t most = 0;
  for (const ParameterSpec& spec : parameters(whole_model(state.config()))) {
    most = std::max(most, spec.n_elements());
  }
  memory_ = Storage(most * 4);
  if (state.config().tp.size > 1 || state.config().ep.size > 1) piece_ = Storage(most * 4);
  for (const MasterPieces& source : plan_.sources) {
    servers_.push_back(control.port<MasterRequest>(source.rank, plan_.channel));
  }
}

Task<> MasterFetcher::fetch(std::size_t canonical) {
  const ModelConfig whole = whole_model(state_.config());
  const ParameterSpec spec = parameters(whole)[canonical];
  parameter_ = memory_.view(Dtype::f32, spec.shape);
  for (std::size_t s = 0; s < plan_.sources.size(); ++s) {
    const MasterPieces& source = plan_.sources[s];
    ModelConfig part_of_source = whole;
    part_of_source.tp = source.tp;
    part_of_source.ep = source.ep;
    const ParameterSpec slice = parameters(part_of_source)[canonical];
    std::int32_t n = 0;
    for (const MasterPieces::Piece& piece : source.pieces) {
      if (piece.canonical != canonical) continue;
      const Range elements = piece.owned.elements;
      const MutView into = slice.slice ? piece_.view(Dtype::f32, {elements.size()})
                                       : part(parameter_, elements.begin, {elements.size()});
      if (source.rank == transport_.rank()) {
        Queue queue;
        copy(queue, state_.master(piece.owned), into);
        queue.finish();
      } else {
        if (n == 0) {
          const MasterRequest request{static_cast<std::int64_t>(canonical)};
          servers_[s](n_asked_[s]++, request);
        }
        Event received(transport_.loop(), wait_piece, static_cast<std::int64_t>(canonical));
        transport_.receive(source.rank, plan_.tag, header_of(canonical, n++), into, received);
        co_await received;
      }
      if (slice.slice) scatter(slice, elements, into.as<float>(), parameter_.as<float>());
    }
  }
}

void MasterFetcher::end() {
  for (std::size_t s = 0; s < plan_.sources.size(); ++s) {
    if (plan_.sources[s].rank == transport_.rank()) continue;
    servers_[s](n_asked_[s]++, MasterRequest{});
  }
}

}  // namespace llm
