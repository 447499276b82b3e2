#pragma once
#include "actors/model_state.h"
#include "src/train/masters.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// A copy on the CPU of the weights and moments that a rank owns, from which a checkpoint is
/// written while training goes on: 12 bytes for each owned element.
class Snapshot {
 public:
  explicit Snapshot(const ModelState& state) : state_(state) {}
  /// Takes the memory, before the first copy: its pages cost more time than the copy. On any thread
  /// where the state is on the CPU.
  void take_memory();
  /// Enqueues the copying; what is enqueued after it may change the state.
  void enqueue(Queue& queue);
  /// Where the copy's pieces lie.
  PieceSource pieces() const;

 private:
  MutView place_of(TensorPart part, const OwnedPiece& piece) const;

  const ModelState& state_;
  Storage memory_;
};

}  // namespace llm
