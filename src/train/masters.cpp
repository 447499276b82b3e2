#include "src/train/masters.h"

#include <algorithm>

#include "src/model/tensor_slice.h"
#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

constexpr int root = 0;
const WaitName wait_piece{"parameter", "its owner"};

Header header_of(std::size_t canonical, TensorPart part, std::int32_t n) {
  return {MessageKind::parameter, static_cast<std::int64_t>(canonical), n,
          static_cast<std::int32_t>(part)};
}

}  // namespace

PieceSource pieces_of(const ModelState& state) {
  return [&state](TensorPart part, const OwnedPiece& piece) -> View {
    switch (part) {
      case TensorPart::weight:
        return state.master(piece);
      case TensorPart::exp_avg:
        return state.m(piece);
      case TensorPart::exp_avg_sq:
        return state.v(piece);
    }
    return {};
  };
}

MasterServer::MasterServer(Transport& transport, int tag, MasterPieces own)
    : transport_(transport),
      tag_(tag),
      own_(std::move(own)),
      requests_(transport.loop(), WaitName("request for a parameter", "rank 0")) {}

Task<> MasterServer::run(PieceSource source) {
  while (true) {
    const MasterRequest request = co_await requests_.take(n_requests_++);
    if (request.canonical < 0) co_return;
    const auto part = static_cast<TensorPart>(request.part);
    std::int32_t n = 0;
    for (const MasterPieces::Piece& piece : own_.pieces) {
      if (static_cast<std::int64_t>(piece.canonical) != request.canonical) continue;
      Event sent(transport_.loop(), wait_piece, request.canonical);
      transport_.send(root, tag_, header_of(piece.canonical, part, n++), source(part, piece.owned),
                      sent);
      co_await sent;
    }
  }
}

MasterFetcher::MasterFetcher(ControlPlane& control, Transport& transport, Plan plan,
                             const ModelConfig& model)
    : transport_(transport),
      plan_(std::move(plan)),
      whole_(whole_model(model)),
      n_asked_(plan_.sources.size(), 0) {
  std::int64_t most = 0;
  for (const ParameterSpec& spec : parameters(whole_)) most = std::max(most, spec.n_elements());
  if (plan_.sources.size() > 1) memory_ = Storage(most * 4);
  if (model.tp.size > 1 || model.ep.size > 1) piece_ = Storage(most * 4);
  for (const MasterPieces& source : plan_.sources) {
    servers_.push_back(control.port<MasterRequest>(source.rank, plan_.channel));
  }
}

View MasterFetcher::own_parameter(std::size_t canonical, const ParameterSpec& spec,
                                  TensorPart part) const {
  const float* first = nullptr;
  std::int64_t n = 0;
  for (const MasterPieces& source : plan_.sources) {
    if (source.rank != transport_.rank() || source.tp.size > 1) continue;
    for (const MasterPieces::Piece& piece : source.pieces) {
      if (piece.canonical != canonical) continue;
      const float* const values = own_(part, piece.owned).as<float>();
      if (first == nullptr) first = values;
      if (piece.owned.elements.begin != n || values != first + n) return {};
      n = piece.owned.elements.end;
    }
  }
  return n == spec.n_elements() ? View(first, spec.shape) : View();
}

Task<> MasterFetcher::fetch(std::size_t canonical, TensorPart part) {
  const ParameterSpec spec = parameters(whole_)[canonical];
  parameter_ = own_parameter(canonical, spec, part);
  if (!parameter_.empty()) co_return;
  CHECK_CONTRACT(memory_.n_bytes() > 0, "the only source has whole parameters");
  const MutView into = memory_.view(Dtype::f32, spec.shape);
  for (std::size_t s = 0; s < plan_.sources.size(); ++s) {
    co_await fetch_from(s, canonical, part, into);
  }
  parameter_ = into;
}

Task<> MasterFetcher::fetch_from(std::size_t s, std::size_t canonical, TensorPart kind,
                                 MutView whole) {
  const MasterPieces& source = plan_.sources[s];
  ModelConfig part_of_source = whole_;
  part_of_source.tp = source.tp;
  part_of_source.ep = source.ep;
  const ParameterSpec slice = parameters(part_of_source)[canonical];
  std::int32_t n = 0;
  for (const MasterPieces::Piece& piece : source.pieces) {
    if (piece.canonical != canonical) continue;
    const Range elements = piece.owned.elements;
    const MutView into = slice.slice ? piece_.view(Dtype::f32, {elements.size()})
                                     : part(whole, elements.begin, {elements.size()});
    if (source.rank == transport_.rank()) {
      Queue queue;
      copy(queue, own_(kind, piece.owned), into);
      queue.finish();
    } else {
      if (n == 0) {
        const MasterRequest request{static_cast<std::int64_t>(canonical),
                                    static_cast<std::int64_t>(kind)};
        servers_[s](n_asked_[s]++, request);
      }
      Event received(transport_.loop(), wait_piece, static_cast<std::int64_t>(canonical));
      transport_.receive(source.rank, plan_.tag, header_of(canonical, kind, n++), into, received);
      co_await received;
    }
    if (slice.slice) scatter(slice, elements, into.as<float>(), whole.as<float>());
  }
}

void MasterFetcher::end() {
  for (std::size_t s = 0; s < plan_.sources.size(); ++s) {
    if (plan_.sources[s].rank == transport_.rank()) continue;
    servers_[s](n_asked_[s]++, MasterRequest{});
  }
}

}  // namespace llm
