#include "src/train/snapshot.h"

#include "tensor/ops/elementwise.h"

namespace llm {

MutView Snapshot::place_of(TensorPart part, const OwnedPiece& piece) const {
  const std::int64_t first = static_cast<std::int64_t>(part) * state_.shard().n_elements;
  return memory_.view(Dtype::f32, {piece.elements.size()}, (first + piece.shard_begin) * 4);
}

void Snapshot::take_memory() {
  const std::int64_t n_bytes = 3 * state_.shard().n_elements * 4;
  memory_ = state_.owned_device() == Device::cpu ? Storage(n_bytes) : Storage::pinned(n_bytes);
}

void Snapshot::enqueue(Queue& queue) {
  const PieceSource source = pieces_of(state_);
  for (const TensorPart part : tensor_parts) {
    for (const std::vector<OwnedPiece>& pieces : state_.shard().pieces) {
      for (const OwnedPiece& piece : pieces)
        copy(queue, source(part, piece), place_of(part, piece));
    }
  }
}

PieceSource Snapshot::pieces() const {
  return [this](TensorPart part, const OwnedPiece& piece) -> View { return place_of(part, piece); };
}

}  // namespace llm
